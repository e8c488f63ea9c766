"""What the ranks of attention DP agree on in each iteration (host contract §5).

Ranks have requests of their own and forward together or not at all: one rank without a batch
keeps all from forwarding. Nothing else is agreed on; no answer is broadcast.

Must not know: requests, pages. Executor thread only.
"""

from __future__ import annotations

from adapter.conformance.host.comm import Communicator


class Lockstep:
    """One rank's voice.

    Args:
        comm: Between all ranks.
    """

    def __init__(self, comm: Communicator) -> None:
        self.rank = comm.rank
        self._comm = comm

    def meet(self, busy: bool, stopping: bool) -> tuple[bool, bool]:
        """Before an iteration: go round together, and end together.

        Args:
            busy: Whether this rank has anything to go round for.
            stopping: Whether this rank was told to stop.

        Returns:
            Whether any rank is busy, whether any was told to stop.
        """
        voices = self._comm.allgather((busy, stopping))
        return any(busy for busy, _ in voices), any(stopping for _, stopping in voices)

    def anyone(self, has_batch: bool) -> bool:
        """Whether any rank has a batch: then those without add a dummy."""
        return any(self._comm.allgather(has_batch))

    def all_forward(self, has_batch: bool) -> bool:
        """Whether every rank has a batch to forward."""
        return all(self._comm.allgather(has_batch))
