"""The control path between the ranks of a job: a star of sockets around the leader.

Host contract §5: what the leader fetched and what its connector answered is broadcast, what
``get_finished`` returned is gathered. A rank that is late makes all others wait, one that is gone
ends the job: both as under MPI.

Must not know: what is said. Executor thread only (bring-up: the main thread).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.ranks.wire import Wire

HANG_LIMIT_S: Final = 300.0
"""The real host's hang detector (host contract §9, rule 10)."""


class ProcessCommunicator:
    """One rank's end; implements ``comm.Communicator``.

    Args:
        rank: This rank.
        wires: The leader's: one to each follower in rank order. A follower's: the one to the
            leader.
        limit_s: Longest wait in seconds for a rank within an iteration.
    """

    def __init__(self, rank: int, wires: Sequence[Wire], limit_s: float = HANG_LIMIT_S) -> None:
        if rank and len(wires) != 1:
            raise HostError(f"follower {rank} needs one wire, has {len(wires)}")
        self._rank = rank
        self._wires = list(wires)
        self._limit_s = limit_s
        self._size = len(self._wires) + 1
        if rank:
            self._size = self._wires[0].receive(limit_s)
        else:
            for wire in self._wires:
                wire.send(self._size, limit_s)

    @property
    def rank(self) -> int:
        """This rank; the leader is 0."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks."""
        return self._size

    def broadcast(self, value: Any) -> Any:
        """Give the leader's value to every rank, pickled on the way.

        Args:
            value: The leader's; a follower's is ignored.

        Returns:
            The leader's value.

        Raises:
            RankLostError: If a rank is gone.
            RankSilentError: If the leader does not get there; an idle one still says so at times.
        """
        if self._rank:
            return self._wires[0].receive(self._limit_s)
        for wire in self._wires:
            wire.send(value, self._limit_s)
        return value

    def allgather(self, value: Any) -> list[Any]:
        """Give every rank's value to every rank.

        Args:
            value: This rank's.

        Returns:
            All values in rank order.

        Raises:
            RankLostError: If a rank is gone.
            RankSilentError: If one does not get there.
        """
        if self._rank:
            self._wires[0].send(value, self._limit_s)
            values: list[Any] = self._wires[0].receive(self._limit_s)
            return values
        values = [value, *(wire.receive(self._limit_s) for wire in self._wires)]
        for wire in self._wires:
            wire.send(values, self._limit_s)
        return values

    def abort(self, reason: str) -> None:
        """This rank's executor died: whoever waits for it finds its wire closed."""
        self.close()

    def close(self) -> None:
        """Close; ranks that still wait are told that this one is gone. Idempotent."""
        for wire in self._wires:
            wire.close()
