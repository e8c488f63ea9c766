"""Engines of several ranks, the connector observed in each rank's own process.

The classes are found there by module name, as a real host finds them. ``watch`` and what the ranks
are told run in the ranks, all else in the kit's main thread. Must not know: rules.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.errors import HostError
from adapter.conformance.host.llm_args import KvCacheConnectorConfig, LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.ranks.engines import (
    AttentionDpEngine,
    RankRequest,
    TensorParallelEngine,
)
from adapter.conformance.host.ranks.injection import Injector
from adapter.conformance.host.requests import HostResult
from adapter.conformance.kit.observe import Call, Log, place
from adapter.conformance.schedules.setups import EXACT

SIZE: Final = 2
_TARGET: Final = "TRTLLM_CONFORMANCE_TARGET"
_OBSERVED: Final = f"{__name__}_observed"
_TORN_S: Final = 0.5
"""Between one rank's part of an iteration and the death of the other."""
_HELD_S: Final = 30.0
"""Until the leader goes on behind an offer, should nobody let it."""
_LOOK_S: Final = 0.01
_WAIT_S: Final = 60.0
_WARM_S: Final = 15.0
_POLL_S: Final = 0.1

_log = Log()
"""Of this process, in a rank."""


def watch(rank: int, injector: Injector) -> None:
    """Plug-in of each rank: puts the connector's classes, observed, where its host finds them."""
    module_name, scheduler, worker = os.environ[_TARGET].split(":")
    module = importlib.import_module(module_name)
    _log.before = lambda hook: injector.reach(f"{hook}.before")
    place(_OBSERVED, getattr(module, scheduler), getattr(module, worker), _log)


def tell(host: HostEngine) -> list[Call]:
    """What was called in this rank so far; errors as far as they can be handed on."""
    return [
        call
        if call.error is None
        else replace(call, answer=None, error=HostError(repr(call.error)))
        for call in _log.of()
        if call.hook not in ("build_connector_meta", "bind_connector_meta")
    ]


class Ranks:
    """One engine of two ranks.

    Attributes:
        engine: the job.
        warm_s: longest time that ranks may take to join, in seconds.
    """

    def __init__(self, engine: TensorParallelEngine | AttentionDpEngine) -> None:
        """Wraps a running engine; the caller ends it."""
        self.engine = engine
        self.warm_s = _WARM_S

    def submit(self, prompt: list[int], count: int = 1, **more: Any) -> RankRequest:
        """Asks, and does not wait; under attention DP ``rank`` says whom."""
        return self.engine.submit(prompt, count, **more)

    def ask(self, prompt: list[int], count: int = 1, **more: Any) -> HostResult:
        """Asks and waits for the end."""
        return self.submit(prompt, count, **more).result(_WAIT_S)

    def store(self, prompt: list[int], settle_s: float, count: int = 1, **more: Any) -> HostResult:
        """Asks, waits for its saves, and empties every rank's own cache."""
        result = self.ask(prompt, count, **more)
        self.engine.forget_reuse(settle_s)
        return result

    def warm(self, prompt: list[int], settle_s: float, **more: Any) -> bool:
        """Asks the same until something of it is loaded: ranks may join one after the other.

        Args:
            prompt: token ids.
            settle_s: longest wait for saves, each time.
            more: as for ``submit``.

        Returns:
            Whether it was, within some seconds.
        """
        end_s = time.monotonic() + self.warm_s
        self.store(prompt, settle_s, **more)
        while not self.store(prompt, settle_s, **more).num_loaded_tokens:
            if time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)
        return True

    def log(self, rank: int, *hooks: str) -> list[Call]:
        """The calls of some hooks in a rank; metadata is left out."""
        calls: list[Call] = self.engine.call(rank, f"{__name__}:tell")
        return [call for call in calls if not hooks or call.hook in hooks]

    def hold_offer(self) -> Callable[[float], bool]:
        """Has the leader pause behind the next offer, before anything is loaded; see ``let_go``.

        Returns:
            Waits, for so many seconds at most, until the leader is there; whether it is.
        """
        before = self._offers()
        self.engine.arm(0, "queried", "delay", seconds=_HELD_S)

        def wait(limit_s: float) -> bool:
            end_s = time.monotonic() + limit_s
            while self._offers() == before:
                if time.monotonic() > end_s:
                    return False
                time.sleep(_LOOK_S)
            return True

        return wait

    def let_go(self) -> None:
        """Has the leader go on, and pause no more."""
        self.engine.disarm(0)

    def _offers(self) -> int:
        return self.engine.stats(0).passes.get("queried", 0)

    def die_before_saving(self, prompt: list[int], rank: int) -> None:
        """Asks, and ends the job by ``kill -9`` of a rank that has computed and not begun to save.

        The other rank has some time for its own part meanwhile.

        Args:
            prompt: token ids.
            rank: of a follower.
        """
        self.engine.arm(rank, "wait_for_save.before", "delay", seconds=_TORN_S)
        self.engine.arm(rank, "wait_for_save.before", "die")
        self.submit(prompt)
        self.engine.wait_dead(_WAIT_S)


def observing(url: str | None) -> KvCacheConnectorConfig:
    """The config of an engine whose ranks run ``watch``.

    Args:
        url: of the connector's server.
    """
    return KvCacheConnectorConfig(
        connector_module=_OBSERVED,
        connector_scheduler_class="Scheduler",
        connector_worker_class="Worker",
        server_url=url,
    )


@contextmanager
def ranks(
    args: LlmArgs, target: str, num_blocks: int, options: HostOptions, *, adp: bool, skewed: bool
) -> Iterator[Ranks]:
    """An engine of two ranks.

    Args:
        args: with ``observing``, or without a connector.
        target: module, scheduler class and worker class, with colons between.
        num_blocks: pages of each rank's pool.
        options: of every rank.
        adp: attention data parallel in place of tensor parallel.
        skewed: whether the second rank's completions count an iteration late.

    Yields:
        The engine; it is shut down afterwards.
    """
    kind = AttentionDpEngine if adp else TensorParallelEngine
    has_connector = args.kv_connector_config is not None
    with kind(
        args,
        num_blocks,
        SIZE,
        options=options,
        per_rank=(lambda rank, common: replace(common, load_skew=rank)) if skewed else None,
        environ={**EXACT, _TARGET: target},
        plugins=[f"{__name__}:watch"] if has_connector else [],
    ) as engine:
        yield Ranks(engine)
