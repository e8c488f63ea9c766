"""An engine under test, whatever processes it runs in.

Must not know: schedules, what is compared. Called from the runner's thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from adapter.channel import Channel
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.ranks.engines import AttentionDpEngine, TensorParallelEngine
from adapter.conformance.schedules.draw import Ask
from protocol.errors import KvkeepError
from protocol.messages import Stats, StatsReply

_STATS_S = 2.0
_LOOK = f"{__name__}:look"


class Answer(Protocol):
    """A request's result, as ``HostResult``."""

    @property
    def tokens(self) -> list[int]:
        """Generated token ids."""

    @property
    def logits(self) -> list[Any]:
        """One tensor per generated token."""

    @property
    def num_loaded_tokens(self) -> int:
        """Prompt tokens taken from the cache."""


class Handle(Protocol):
    """A submitted request, as ``RequestHandle``."""

    def result(self, timeout_s: float) -> Answer:
        """Waits for the end; raises if it failed or was cancelled."""


@dataclass(frozen=True)
class Look:
    """What one rank shows of itself.

    Attributes:
        free_pages: that could be handed out now.
        num_pages: all pages, over all groups.
        adapter: the adapter's counters.
        server: counters and gauges of the server as this rank is told; empty when it cannot be
            asked.
        died_of: why the executor is gone; empty while it runs.
    """

    free_pages: int
    num_pages: int
    adapter: dict[str, int]
    server: dict[str, int]
    died_of: str


def look(host: HostEngine) -> Look:
    """Looks at one rank, in its own process, over a connection of its own.

    Args:
        host: with or without a connector.
    """
    link = getattr(host.connector.worker, "link", None)
    if link is None:
        return _look(host, None)
    channel = link.open_channel()
    try:
        return _look(host, channel)
    finally:
        channel.close()


def _look(host: HostEngine, channel: Channel | None) -> Look:
    worker = host.connector.worker
    return Look(
        free_pages=host.stats().num_available_blocks,
        num_pages=host.allocator.num_pages,
        adapter=worker.counters() if hasattr(worker, "counters") else {},
        server={} if channel is None else _ask_server(channel),
        died_of="" if host.error is None else repr(host.error),
    )


def _ask_server(channel: Channel) -> dict[str, int]:
    try:
        reply = channel.call(Stats(), _STATS_S)
    except KvkeepError:
        return {}
    return dict(reply.values) if isinstance(reply, StatsReply) else {}


class Subject(Protocol):
    """What the runner needs of an engine."""

    def submit(self, ask: Ask) -> Handle:
        """Asks for a generation."""

    def cancel(self, handle: Any) -> None:
        """Ends a request early."""

    def forget_reuse(self, timeout_s: float) -> None:
        """Waits until nothing runs or is held, and empties the host's own cache."""

    def look(self) -> Sequence[Look]:
        """Looks at every rank."""


class SoloSubject:
    """A ``HostEngine`` of this process."""

    def __init__(self, engine: HostEngine) -> None:
        """Wraps an engine; the caller ends it.

        Args:
            engine: running.
        """
        self.engine = engine
        self._channel: Channel | None = None

    def submit(self, ask: Ask) -> Handle:
        """Asks for a generation."""
        return self.engine.submit(ask.prompt, ask.max_new_tokens, **_further(ask))

    def cancel(self, handle: Any) -> None:
        """Ends a request early."""
        self.engine.cancel(handle)

    def forget_reuse(self, timeout_s: float) -> None:
        """Waits until nothing runs or is held, and empties the host's own cache."""
        self.engine.forget_reuse(timeout_s)

    def look(self) -> Sequence[Look]:
        """Looks at the only rank, over one connection that stays.

        A process that opens one after the other loses those it used least, its saver's among them.
        """
        link = getattr(self.engine.connector.worker, "link", None)
        if link is not None and self._channel is None:
            self._channel = link.open_channel()
        return [_look(self.engine, self._channel)]

    def close(self) -> None:
        """Closes what this object opened; the engine is left alone. Idempotent."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class RankedSubject:
    """An engine of several processes: tensor parallel, or attention data parallel."""

    def __init__(self, engine: TensorParallelEngine | AttentionDpEngine) -> None:
        """Wraps an engine; the caller ends it.

        Args:
            engine: running.
        """
        self.engine = engine
        self._turns = itertools.count()

    def submit(self, ask: Ask) -> Handle:
        """Asks for a generation; under attention data parallelism one rank after the other."""
        if isinstance(self.engine, AttentionDpEngine):
            rank = next(self._turns) % self.engine.size
            return self.engine.submit(ask.prompt, ask.max_new_tokens, rank=rank, **_further(ask))
        return self.engine.submit(ask.prompt, ask.max_new_tokens, **_further(ask))

    def cancel(self, handle: Any) -> None:
        """Ends a request early."""
        handle.cancel()

    def forget_reuse(self, timeout_s: float) -> None:
        """Waits until nothing runs or is held, and empties every rank's own cache."""
        self.engine.forget_reuse(timeout_s)

    def look(self) -> Sequence[Look]:
        """Looks at every rank."""
        found: list[Look] = [self.engine.call(rank, _LOOK) for rank in range(self.engine.size)]
        return found


def _further(ask: Ask) -> dict[str, Any]:
    return {
        "stop_ids": ask.stop_ids,
        "cache_salt": ask.cache_salt,
        "context_only": ask.context_only,
    }
