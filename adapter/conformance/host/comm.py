"""What the ranks of one engine say to each other on the control path.

Host contract §5: the leader's commands, query answers, metadata and ``request_finished`` answers
are pickled and broadcast; what ``get_finished`` returns is gathered from all. A single rank talks
to itself.

Must not know: what is said. Executor thread only.
"""

from __future__ import annotations

from typing import Any, Protocol


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


class Solo:
    """The only rank there is."""

    rank = 0
    size = 1

    def broadcast(self, value: Any) -> Any:
        """The value itself."""
        return value

    def allgather(self, value: Any) -> list[Any]:
        """The value alone."""
        return [value]
