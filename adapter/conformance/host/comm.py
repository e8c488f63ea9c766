"""What the ranks of one engine say to each other on the control path.

Host contract §5: the leader's commands, query answers, metadata and ``request_finished`` answers
are pickled and broadcast; what ``get_finished`` returns is gathered from all. A single rank talks
to itself. An idle leader still broadcasts every ``IDLE_BEAT_S``, so that no wait of a healthy
job is longer than an iteration takes.

Must not know: what is said. Executor thread only.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

IDLE_BEAT_S: Final = 0.25
"""How often ranks that have nothing to do meet, at least. Below any sane limit of a wait."""


class Communicator(Protocol):
    """One rank's end."""

    @property
    def rank(self) -> int:
        """This rank; the leader is 0."""

    @property
    def size(self) -> int:
        """Ranks."""

    def broadcast(self, value: Any) -> Any:
        """Every rank calls it; each gets the leader's value, pickled on the way."""

    def allgather(self, value: Any) -> list[Any]:
        """Every rank calls it; each gets all values in rank order."""

    def abort(self, reason: str) -> None:
        """This rank's executor died: calls of the others are to raise soon, never to hang."""


class Solo:
    """The only rank there is.

    Args:
        rank: What it calls itself: under attention DP every rank is alone with its connector.
    """

    size = 1

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def broadcast(self, value: Any) -> Any:
        """The value itself."""
        return value

    def allgather(self, value: Any) -> list[Any]:
        """The value alone."""
        return [value]

    def abort(self, reason: str) -> None:
        """There is nobody to tell."""
