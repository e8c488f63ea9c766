"""One server and one engine at a time, and the workload through both.

Between requests everything settles: saves have ended, what the server gave is mapped, the engine's
own reuse is empty. So each hit comes from the server and none is lost to timing. The payload model
fills pages with bytes that follow from the tokens, and compares every loaded page with what it must
hold; a difference ends the engine.

Must not know: what is expected. Runs in the caller's thread; the server is a child of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adapter.config import make_kv_connector_config
from adapter.conformance.agentic.figures import Seen
from adapter.conformance.agentic.workload import VOCAB_SIZE, Workload
from adapter.conformance.demo.calm import Calm
from adapter.conformance.demo.processes import Child, DemoError, own_environment, stage
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.llm_args import KvCacheConfig, LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.payload import PayloadModel
from adapter.conformance.host.weights import ModelConfig, write_model_dir

SETTINGS: Final = {
    # Counts must be exact on a busy machine too; a user would rather have a miss.
    "TRTLLM_KVKEEP_QUERY_BUDGET_MS": "1000",
    "TRTLLM_KVKEEP_HELD_PAGES_PERCENT": "100",
}
_REQUEST_S: Final = 120.0
_SETTLE_S: Final = 60.0
_START_S: Final = 30.0
_POLL_S: Final = 0.005
_MIB: Final = 1 << 20
_MAX_EXTENT_BYTES: Final = 1 << 30
MAX_PAGE_BYTES: Final = _MAX_EXTENT_BYTES - _MIB
"""A page lies in one file of the cache, behind its records."""
_SLOTS_PER_EXTENT: Final = 32

Report = Callable[[int, int], None]
"""Told the requests done, and how many there are."""


@dataclass(frozen=True)
class Scale:
    """How large everything is; by default 128 KiB a token, as Llama-3-8B has in 16 bits.

    Attributes:
        workload: what is asked.
        layers: of the model.
        elements: of one byte, in K and again in V, of a token in one layer.
    """

    workload: Workload
    layers: int = 32
    elements: int = 2048

    @property
    def token_bytes(self) -> int:
        """KV bytes of a token."""
        return self.layers * 2 * self.elements

    @property
    def model(self) -> ModelConfig:
        """A model whose KV has this size; its weights are small, and nobody computes with them."""
        head_dim = min(self.elements, 128)
        heads = self.elements // head_dim
        return ModelConfig(
            hidden_size=4,
            intermediate_size=4,
            num_hidden_layers=self.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=head_dim,
        )

    def small(self) -> Scale:
        """The same with 64 bytes a token, for counts alone."""
        return Scale(self.workload, layers=1, elements=32)

    @property
    def page_bytes(self) -> int:
        """Bytes of one block."""
        return self.workload.block_tokens * self.token_bytes

    @property
    def extent_bytes(self) -> int:
        """Length of one file of the cache: its records, and some tens of blocks."""
        most = MAX_PAGE_BYTES // self.page_bytes
        return _MIB + min(_SLOTS_PER_EXTENT, most) * self.page_bytes

    @property
    def arena_bytes(self) -> int:
        """Room for every block, so that nothing is evicted."""
        slots = (self.extent_bytes - _MIB) // self.page_bytes
        return (self.workload.distinct_blocks // slots + 2) * self.extent_bytes

    @property
    def pool_pages(self) -> int:
        """Pages of the engine: the longest request, and as many saves as may be under way."""
        longest = self.workload.max_prompt_tokens + self.workload.answer_tokens
        return longest // self.workload.block_tokens + 8


@dataclass(frozen=True)
class Played:
    """One pass over the workload.

    Attributes:
        seen: every request.
        verified_blocks: pages compared bit for bit with what they must hold.
    """

    seen: list[Seen]
    verified_blocks: int

    @property
    def is_bit_exact(self) -> bool:
        """Whether every block that was not computed was compared."""
        return self.verified_blocks == sum(one.hit_blocks + one.device_blocks for one in self.seen)


@contextmanager
def serving(scale: Scale) -> Iterator[str]:
    """Starts a server with room for everything; it and its files are gone afterwards.

    Args:
        scale: how much room.

    Yields:
        Its URL.

    Raises:
        DemoError: it did not start, or there is no room.
    """
    with stage(scale.arena_bytes) as on:
        url = f"ipc://{on.folder}/kvkeep.sock"
        server = Child(
            on,
            "server",
            [
                *("-m", "server", "launch", "--endpoint", url),
                *("--arena-dir", str(on.arena_dir), "--l1-size", str(scale.arena_bytes)),
                *("--extent-size", str(scale.extent_bytes), "--arena-at-exit", "remove"),
            ],
        )
        try:
            server.read_line(_START_S)
            yield url
        except DemoError as error:
            raise DemoError(f"{error}\n{on.log_tails(5)}") from error


class Rig:
    """An engine of this process and its connector.

    Args:
        scale: sizes.
        url: of the server.
        folder: for the model's files; the same one makes the same namespace.
    """

    def __init__(self, scale: Scale, url: str, folder: Path) -> None:
        self._scale = scale
        block_tokens = scale.workload.block_tokens
        self._model = PayloadModel(
            block_tokens,
            bytes_per_token=scale.elements,
            num_layers=scale.layers,
            vocab_size=VOCAB_SIZE,
        )
        args = LlmArgs(
            model=write_model_dir(folder, scale.model),
            kv_cache_config=KvCacheConfig(block_tokens, enable_partial_reuse=False),
            kv_connector_config=make_kv_connector_config(url),
            max_num_tokens=scale.workload.max_prompt_tokens + block_tokens,
        )
        options = HostOptions(capture_logits=False, call_shutdown=True, probe=self._probe)
        self._engine = HostEngine(args, scale.pool_pages, model=self._model, options=options)
        self._calm = Calm(self._engine.connector.worker.link)

    def wait_for_server(self) -> None:
        """Waits until the connector has registered.

        Raises:
            TimeoutError: it does not.
        """
        deadline_s = time.monotonic() + _START_S
        while not self._settle():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the engine did not reach its server in {_START_S:.0f} s")
            time.sleep(_POLL_S)

    def play(self, *, saves_answers: bool, report: Report) -> Played:
        """Asks everything, one request after the other.

        Args:
            saves_answers: let the engine write the answers, so that their blocks are saved;
                otherwise it writes one token, and answers come with the next prompt.
            report: told how far it is.

        Returns:
            What was seen.
        """
        order = self._scale.workload.order()
        verified = self._model.num_verified_pages
        histories: dict[int, list[int]] = {}
        seen = []
        for number, turn in enumerate(order, 1):
            prompt = histories.get(turn.agent, []) + self._scale.workload.message(turn)
            one, answer = self._ask(turn.turn, prompt, saves_answers)
            seen.append(one)
            histories[turn.agent] = prompt + (answer or self._scale.workload.answer(turn))
            report(number, len(order))
        return Played(seen, self._model.num_verified_pages - verified)

    def _probe(self, point: str, request_ids: tuple[int, ...]) -> None:
        """Lets this host spoil the pages it hands out before the load's time begins.

        No engine does that, and a load waits for it as it waits for all work before it.
        """
        if point == "bound":
            self._engine.device.main.synchronize(_SETTLE_S)

    def _ask(self, turn: int, prompt: list[int], saves_answers: bool) -> tuple[Seen, list[int]]:
        block_tokens = self._scale.workload.block_tokens
        # One token beyond the answer ends it: it is sampled, and never becomes KV.
        wanted = self._scale.workload.answer_tokens + 1 if saves_answers else 1
        load_before, query_before = self._load_s(), self._hook_s("get_num_new_matched_tokens")
        result = self._engine.submit(prompt, wanted).result(_REQUEST_S)
        seen = Seen(
            turn=turn,
            num_tokens=len(prompt),
            num_blocks=len(prompt) // block_tokens,
            hit_blocks=result.num_loaded_tokens // block_tokens,
            device_blocks=result.num_device_tokens // block_tokens,
            load_s=self._load_s() - load_before,
            query_s=self._hook_s("get_num_new_matched_tokens") - query_before,
        )
        if not self._settle():
            raise DemoError("the server was lost")
        return seen, list(result.tokens[:-1])

    def _settle(self) -> bool:
        self._engine.forget_reuse(_SETTLE_S)
        return self._calm.wait(_SETTLE_S)

    def _load_s(self) -> float:
        """Seconds so far in hooks that moved loaded bytes."""
        return self._sum_s(lambda row: bool(row["with_load"]))

    def _hook_s(self, name: str) -> float:
        return self._sum_s(lambda row: row["hook"] == name)

    def _sum_s(self, counts: Callable[[dict[str, object]], bool]) -> float:
        rows = [row for row in self._engine.hooks.as_rows() if counts(row)]
        return sum(float(str(row["mean_us"])) * int(str(row["num_calls"])) for row in rows) / 1e6

    def close(self) -> None:
        """Ends the engine."""
        self._calm.close()
        self._engine.shutdown()


@contextmanager
def engine(
    scale: Scale, url: str, folder: Path, settings: Mapping[str, str] = SETTINGS
) -> Iterator[Rig]:
    """Brings up an engine that has reached its server.

    Args:
        scale: sizes.
        url: of the server.
        folder: for the model's files.
        settings: of the connector, as environment variables.

    Yields:
        The engine.
    """
    before = dict(os.environ)
    # Read when the connector is constructed; the user's own settings are for other engines.
    os.environ.clear()
    os.environ.update(own_environment(before) | dict(settings))
    try:
        rig = Rig(scale, url, folder)
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        rig.wait_for_server()
        yield rig
    finally:
        rig.close()
