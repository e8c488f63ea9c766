"""The all-reduce of a tensor-parallel model: every rank gets the same bits.

The leader adds the ranks' partial sums in rank order and hands the result out, so that the order
of additions never depends on who came first. A channel of its own: it runs on stream X's thread
while the control path serves the executor's.

Must not know: what is added. Stream X's thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.ranks.communicator import HANG_LIMIT_S
from adapter.conformance.host.ranks.wire import Wire


class Reducer:
    """One rank's end.

    Args:
        rank: This rank.
        wires: The leader's: one to each follower in rank order. A follower's: the one to the
            leader. None at all: the only rank.
        limit_s: Longest wait in seconds for a rank.
    """

    def __init__(self, rank: int, wires: Sequence[Wire], limit_s: float = HANG_LIMIT_S) -> None:
        if rank and len(wires) != 1:
            raise HostError(f"follower {rank} needs one wire, has {len(wires)}")
        self._rank = rank
        self._wires = list(wires)
        self._limit_s = limit_s

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        """Add up what all ranks pass.

        Args:
            partial: float32, contiguous, of the same shape on every rank.

        Returns:
            The sum; bit-equal on all ranks. May be ``partial``, changed in place.

        Raises:
            RankLostError: If a rank is gone.
            RankSilentError: If one does not get there.
        """
        if not self._wires:
            return partial
        num_bytes = partial.numel() * partial.element_size()
        if self._rank:
            self._send(self._wires[0], partial)
            return self._receive(self._wires[0], num_bytes, partial)
        for wire in self._wires:
            partial.add_(self._receive(wire, num_bytes, partial))
        for wire in self._wires:
            self._send(wire, partial)
        return partial

    def close(self) -> None:
        """Close; ranks that still wait are told that this one is gone. Idempotent."""
        for wire in self._wires:
            wire.close()

    def _send(self, wire: Wire, value: torch.Tensor) -> None:
        wire.send_bytes(memoryview(value.numpy()).cast("B"), self._limit_s)

    def _receive(self, wire: Wire, num_bytes: int, like: torch.Tensor) -> torch.Tensor:
        data = wire.receive_bytes(num_bytes, self._limit_s)
        return torch.frombuffer(data, dtype=like.dtype).view(like.shape)
