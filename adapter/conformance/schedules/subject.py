"""An engine under test, whatever processes it runs in.

Must not know: schedules, what is compared. Called from the runner's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from adapter.channel import Channel
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.schedules.draw import Ask
from protocol.errors import KvkeepError
from protocol.messages import Stats, StatsReply

_STATS_S = 2.0


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

    def result(self, timeout_s: float | None = None) -> Answer:
        """Waits for the end; raises if it failed or was cancelled."""


class Subject(Protocol):
    """What the runner needs of an engine."""

    def submit(self, ask: Ask) -> Handle:
        """Asks for a generation."""

    def cancel(self, handle: Any) -> None:
        """Ends a request early."""

    def forget_reuse(self, timeout_s: float) -> None:
        """Waits until nothing runs or is held, and empties the host's own cache."""

    def free_pages(self) -> tuple[int, int]:
        """Pages that could be handed out, and all pages, over all groups and ranks."""

    def held(self) -> Sequence[dict[str, int]]:
        """The adapter's counters, one dict per rank."""

    def server_values(self) -> dict[str, int]:
        """The server's counters and gauges; empty when it cannot be asked."""

    def died_of(self) -> str:
        """Why it cannot go on; empty while it can."""


class SoloSubject:
    """A ``HostEngine`` of this process, with the kvkeep connector."""

    def __init__(self, engine: HostEngine) -> None:
        """Wraps an engine; the caller ends it.

        Args:
            engine: running.
        """
        self.engine = engine
        self._channel: Channel | None = None

    def submit(self, ask: Ask) -> Handle:
        """Asks for a generation."""
        return self.engine.submit(
            ask.prompt, ask.max_new_tokens, stop_ids=ask.stop_ids, cache_salt=ask.cache_salt
        )

    def cancel(self, handle: Any) -> None:
        """Ends a request early."""
        self.engine.cancel(handle)

    def forget_reuse(self, timeout_s: float) -> None:
        """Waits until nothing runs or is held, and empties the host's own cache."""
        self.engine.forget_reuse(timeout_s)

    def free_pages(self) -> tuple[int, int]:
        """Pages that could be handed out, and all pages."""
        return self.engine.stats().num_available_blocks, self.engine.num_pages

    def held(self) -> Sequence[dict[str, int]]:
        """The adapter's counters."""
        return [self.engine.connector.worker.counters()]

    def server_values(self) -> dict[str, int]:
        """The server's counters and gauges; empty when it cannot be asked."""
        link = self.engine.connector.worker.link
        if link is None:
            return {}
        if self._channel is None:
            self._channel = link.open_channel()
        try:
            reply = self._channel.call(Stats(), _STATS_S)
        except KvkeepError:
            return {}
        return dict(reply.values) if isinstance(reply, StatsReply) else {}

    def died_of(self) -> str:
        """Why it cannot go on; empty while it can."""
        return "" if self.engine.error is None else repr(self.engine.error)

    def close(self) -> None:
        """Closes what this object opened; the engine is left alone."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
