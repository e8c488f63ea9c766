"""Engines for the checks: the connector under test, observed, and one without any connector.

Must not know: rules. Runs in the kit's main thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from adapter.config import CONNECTOR_MODULE
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.llm_args import KvCacheConfig, KvCacheConnectorConfig, LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import HostResult
from adapter.conformance.host.weights import ModelConfig, write_model_dir
from adapter.conformance.kit.classes import load
from adapter.conformance.kit.observe import BY_GROUP, Log, observed, overridden
from adapter.conformance.kit.ranked import Ranks, observing, ranks
from adapter.conformance.kit.serverchild import Server
from adapter.trtllm_api import KvCacheConnectorScheduler, KvCacheConnectorWorker

BLOCK: Final = 16
SCHEDULES: Final = 4
WAIT_S: Final = 60.0
SETTLE_S: Final = 30.0


@dataclass(frozen=True)
class Target:
    """The connector under test.

    Attributes:
        module: where its classes are.
        scheduler_class: name in it.
        worker_class: name in it.
        server_url: given to it in its config; None for none.
    """

    module: str
    scheduler_class: str
    worker_class: str
    server_url: str | None


class Probe:
    """Acts at one point of the next iteration that reaches it, once armed."""

    def __init__(self) -> None:
        """Arms nothing."""
        self.actions: dict[str, Any] = {}
        self.seen: list[str] = []

    def __call__(self, point: str, request_ids: tuple[int, ...]) -> None:
        """As the host calls it."""
        action = self.actions.get(point)
        if action is not None and request_ids:
            action()
            self.seen.append(point)

    def once(self, point: str, action: Any) -> None:
        """Arms an action.

        Args:
            point: as the host names it.
            action: runs on the executor's thread.
        """

        def act() -> None:
            del self.actions[point]
            action()

        self.actions[point] = act


class Seen:
    """One engine of the connector under test, and what was called.

    Attributes:
        host: the engine.
        log: every call and answer.
    """

    def __init__(self, host: HostEngine, log: Log, on_load: Callable[[], None]) -> None:
        """Wraps a running engine."""
        self.host = host
        self.log = log
        self._on_load = on_load

    def ask(self, prompt: list[int], count: int = 1, **more: Any) -> HostResult:
        """Asks and waits for the end.

        Args:
            prompt: token ids.
            count: tokens to generate.
            more: as for ``HostEngine.submit``.
        """
        result = self.host.submit(prompt, count, **more).result(WAIT_S)
        if result.num_loaded_tokens:
            self._on_load()
        return result

    def store(self, prompt: list[int], count: int = 1, **more: Any) -> HostResult:
        """Asks, waits for its saves, and empties the host's own cache."""
        result = self.ask(prompt, count, **more)
        self.host.forget_reuse(SETTLE_S)
        return result

    def offers(self, since: int = 0) -> list[tuple[int, int, int]]:
        """(request id, device match, tokens offered) of each query after a place in the log."""
        return [
            (call.request_id, int(call.detail[0]), int(call.answer[0]))
            for call in self.log.since(since, "get_num_new_matched_tokens")
            if call.answer is not None
        ]

    def settle_streams(self) -> None:
        """Waits until everything queued on the device so far is done."""
        self.host.device.execution.synchronize(WAIT_S)
        self.host.device.main.synchronize(WAIT_S)

    def queue_forward_work(self, work: Callable[[], object]) -> None:
        """Queues work as a forward would be: behind M on X, and M behind it.

        Args:
            work: runs on X.
        """
        main, execution = self.host.device.main, self.host.device.execution
        execution.wait_stream(main)
        execution.enqueue(work)
        main.wait_stream(execution)


class Bench:
    """Builds engines.

    Attributes:
        target: the connector under test.
        service: its server, when the kit started one; checks may stop or kill it.
        schedules: how many random schedules each rule about them plays.
        seed: of the first of them.
        has_loaded: whether any engine of one rank has loaded anything so far.
        was_in_vain: whether a rule was tried as often as may be before anything was.
    """

    def __init__(
        self,
        target: Target,
        model: Path,
        service: Server | None,
        *,
        schedules: int = SCHEDULES,
        seed: int = 0,
    ) -> None:
        """Loads the connector's classes.

        Args:
            target: the connector under test.
            model: directory of a model; further models are written beside it.
            service: its server, when the kit started one.
            schedules: how many random schedules each rule about them plays.
            seed: of the first of them.

        Raises:
            ClassError: there are none, or they are no connector's.
        """
        self.target = target
        self.service = service
        self.schedules = schedules
        self.seed = seed
        self.has_loaded = self.was_in_vain = False
        self._model = model
        self._scheduler, self._worker = load(
            target.module, target.scheduler_class, target.worker_class
        )

    def _note_load(self) -> None:
        self.has_loaded = True

    @property
    def is_ours(self) -> bool:
        """Whether it is kvkeep's own connector."""
        return self.target.module == CONNECTOR_MODULE

    @property
    def models(self) -> Path:
        """A folder for models."""
        return self._model.parent

    @property
    def sweep_url(self) -> str | None:
        """For schedules: the server of our own connector, where nobody else is; or None."""
        return self.target.server_url if self.is_ours and self.service is not None else None

    @property
    def sweep_connector(self) -> KvCacheConnectorConfig | None:
        """For schedules: any connector that is not ours with a server of the kit's; or None."""
        if self.sweep_url is not None:
            return None
        target = self.target
        return KvCacheConnectorConfig(
            connector_module=target.module,
            connector_scheduler_class=target.scheduler_class,
            connector_worker_class=target.worker_class,
            server_url=target.server_url,
        )

    def opted_into_attention_dp(self) -> tuple[bool, bool]:
        """What scheduler and worker class say of attention data parallelism."""
        name = "supports_attention_dp"
        return (
            bool(getattr(self._scheduler, name, False)),
            bool(getattr(self._worker, name, False)),
        )

    def takes_layer_groups(self) -> bool:
        """Whether both classes have what a cache of several layer groups asks for."""
        return bool(overridden(self._scheduler)) and hasattr(
            self._worker, "register_kv_cache_layout"
        )

    def takes_layouts(self) -> bool:
        """Whether both classes have what a V2 cache of one layer group asks for."""
        has_own = all(hasattr(self._scheduler, name) for name in BY_GROUP)
        return has_own and hasattr(self._worker, "register_kv_cache_layout")

    def methods(self, scheduler: Sequence[str], worker: Sequence[str]) -> set[str]:
        """Those of some methods that the classes have of their own, not from the host's base.

        Args:
            scheduler: to look for in the scheduler's class.
            worker: to look for in the worker's.
        """
        found = set[str]()
        for part, base, names in (
            (self._scheduler, KvCacheConnectorScheduler, scheduler),
            (self._worker, KvCacheConnectorWorker, worker),
        ):
            found |= {
                name
                for name in names
                if getattr(part, name, None) not in (None, getattr(base, name, None))
            }
        return found

    @contextmanager
    def engine(
        self,
        options: HostOptions | None = None,
        *,
        config: ModelConfig | None = None,
        num_blocks: int = 48,
        cache: KvCacheConfig | None = None,
        **arguments: Any,
    ) -> Iterator[Seen]:
        """An engine with the connector under test.

        Args:
            options: of the host.
            config: of the model; None for the bench's own.
            num_blocks: pages of its pool; of each layer group.
            cache: its cache settings; partial reuse is off by default.
            arguments: further ``LlmArgs``.

        Yields:
            The engine and its log; it is shut down afterwards.
        """
        log = Log()
        with observed(self._scheduler, self._worker, log) as (module, scheduler, worker):
            connector = KvCacheConnectorConfig(
                connector_module=module,
                connector_scheduler_class=scheduler,
                connector_worker_class=worker,
                server_url=self.target.server_url,
            )
            args = self._args(config, cache, kv_connector_config=connector, **arguments)
            host = HostEngine(args, num_blocks, options=options)
            try:
                yield Seen(host, log, self._note_load)
            finally:
                host.shutdown()
                end = getattr(host.connector.worker, "shutdown", None)
                if end is not None:
                    end()

    def expected(
        self,
        prompt: list[int],
        count: int,
        config: ModelConfig | None = None,
        *,
        cache: KvCacheConfig | None = None,
        options: HostOptions | None = None,
    ) -> HostResult:
        """What an engine without a connector answers.

        Args:
            prompt: token ids.
            count: tokens to generate.
            config: of the model; None for the bench's own.
            cache: its cache settings, where they change what is computed.
            options: of the host, likewise.
        """
        with HostEngine(self._args(config, cache), 48, options=options) as host:
            return host.submit(prompt, count).result(WAIT_S)

    @contextmanager
    def ranks(
        self,
        options: HostOptions | None = None,
        *,
        config: ModelConfig | None = None,
        num_blocks: int = 48,
        cache: KvCacheConfig | None = None,
        adp: bool = False,
        skewed: bool = False,
        with_connector: bool = True,
        **arguments: Any,
    ) -> Iterator[Ranks]:
        """An engine of two ranks, each a process.

        Args:
            options: of the host.
            config: of the model; None for the bench's own.
            num_blocks: pages of each rank's pool; of each layer group.
            cache: its cache settings; partial reuse is off by default.
            adp: attention data parallel in place of tensor parallel.
            skewed: whether the second rank's completions count an iteration late.
            with_connector: False for what others are compared with.
            arguments: further ``LlmArgs``.

        Yields:
            The engine; it is shut down afterwards.
        """
        target = self.target
        names = ":".join((target.module, target.scheduler_class, target.worker_class))
        if with_connector:
            arguments["kv_connector_config"] = observing(target.server_url)
        args = self._args(config, cache, **arguments)
        options = options or HostOptions(epoch="E3" if adp else "E2")
        with ranks(args, names, num_blocks, options, adp=adp, skewed=skewed) as engine:
            if self.was_in_vain and not self.has_loaded:
                engine.warm_s = 0.0  # an engine of one rank would have
            yield engine

    def expected_of_ranks(
        self, asks: list[tuple[list[int], int]], config: ModelConfig | None = None
    ) -> list[HostResult]:
        """What an engine of the same tensor-parallel degree without a connector answers.

        Args:
            asks: prompts and tokens to generate.
            config: of the model; None for the bench's own.
        """
        with self.ranks(config=config, with_connector=False) as engine:
            handles = [engine.submit(prompt, count) for prompt, count in asks]
            return [handle.result(WAIT_S) for handle in handles]

    def _args(
        self, config: ModelConfig | None, cache: KvCacheConfig | None, **arguments: Any
    ) -> LlmArgs:
        cache = cache or KvCacheConfig(tokens_per_block=BLOCK, enable_partial_reuse=False)
        return LlmArgs(model=str(self._folder_of(config)), kv_cache_config=cache, **arguments)

    def _folder_of(self, config: ModelConfig | None) -> Path:
        if config is None:
            return self._model
        # Further models lie beside the bench's own, whose folder the caller removes.
        folder = self._model.with_name(f"{self._model.name}-{abs(hash(config)):x}")
        return folder if folder.exists() else write_model_dir(folder, config)


def text(num_tokens: int, seed: int) -> list[int]:
    """A prompt.

    Args:
        num_tokens: its length.
        seed: another seed is another text.
    """
    rng = random.Random(f"kit {seed}")
    return [rng.randrange(1, 250) for _ in range(num_tokens)]


def same(one: HostResult, other: HostResult) -> bool:
    """Equal tokens and bit-equal logits."""
    return one.tokens == other.tokens and all(
        torch.equal(a, b) for a, b in zip(one.logits, other.logits, strict=True)
    )
