"""Engines for the checks: the connector under test, observed, and one without any connector.

Must not know: rules. Runs in the kit's main thread.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.llm_args import KvCacheConfig, KvCacheConnectorConfig, LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.requests import HostResult
from adapter.conformance.host.weights import ModelConfig, write_model_dir
from adapter.conformance.kit.observe import Log, observed, overridden
from adapter.conformance.schedules.service import Service

BLOCK: Final = 16
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

    def __init__(self, host: HostEngine, log: Log) -> None:
        """Wraps a running engine."""
        self.host = host
        self.log = log

    def ask(self, prompt: list[int], count: int = 1, **more: Any) -> HostResult:
        """Asks and waits for the end.

        Args:
            prompt: token ids.
            count: tokens to generate.
            more: as for ``HostEngine.submit``.
        """
        return self.host.submit(prompt, count, **more).result(WAIT_S)

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
    """

    def __init__(self, target: Target, model: Path, service: Service | None) -> None:
        """Loads the connector's classes.

        Args:
            target: the connector under test.
            model: directory of a model; further models are written beside it.
            service: its server, when the kit started one.

        Raises:
            ImportError: there is no such module.
            AttributeError: it has no such class.
        """
        self.target = target
        self.service = service
        self._model = model
        module = importlib.import_module(target.module)
        self._scheduler = getattr(module, target.scheduler_class)
        self._worker = getattr(module, target.worker_class)

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
                yield Seen(host, log)
            finally:
                host.shutdown()
                end = getattr(host.connector.worker, "shutdown", None)
                if end is not None:
                    end()

    def expected(
        self, prompt: list[int], count: int, config: ModelConfig | None = None
    ) -> HostResult:
        """What an engine without a connector answers.

        Args:
            prompt: token ids.
            count: tokens to generate.
            config: of the model; None for the bench's own.
        """
        with HostEngine(self._args(config, None), 48) as host:
            return host.submit(prompt, count).result(WAIT_S)

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
