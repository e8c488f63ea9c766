"""One lease: what a LOOKUP matched, and who has not given which chunk back.

Must not know: how chunks are pinned, what ends a lease. Runs in: the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.ids import LeaseId, RequestKey, SessionId
from server.core.index import ChunkIndex
from server.core.namespaces import Instance, Owner
from server.core.tallies import Tally

PIN_SLOTS = 512
"""Slots that are pinned or released in one slice."""


@dataclass(slots=True)
class Lease:
    """What one LOOKUP matched.

    Attributes:
        lease: its id.
        instance: whose.
        session: of the scheduler that asked.
        request: request key.
        index: the index at that time; another one now means that all was cleared.
        node: deepest matched node.
        life: of that node, at that time.
        start: ordinal of the first matched chunk.
        ready: matched chunks.
        is_open: whether it still promises chunks that were not retrieved.
        is_pinning: a RETRIEVE of it is under way; a later one waits for that one's end.
        slots: int32[ready, num_shards], valid where ``retrieved``; None before.
        retrieved: bool[ready].
        held_by: bool[num_ranks, ready], who has not given back which chunk.
        tally: what of the LOOKUP was loaded, under this lease or one that it replaced.
    """

    lease: LeaseId
    instance: Instance
    session: SessionId
    request: RequestKey
    index: ChunkIndex
    node: int
    life: int
    start: int
    ready: int
    is_open: bool = True
    is_pinning: bool = False
    slots: NDArray[np.int32] | None = None
    retrieved: NDArray[np.bool_] | None = None
    held_by: NDArray[np.bool_] | None = None
    tally: Tally = field(default_factory=Tally)

    @property
    def owner(self) -> Owner:
        """The namespace."""
        return self.instance.owner

    @property
    def node_lives(self) -> bool:
        """Whether the matched chunks are still in the index."""
        return self.index is self.owner.index and self.index.life[self.node] == self.life


def slice_chunks(lease: Lease) -> int:
    """Chunks of a lease that are pinned or released in one slice."""
    return max(1, PIN_SLOTS // lease.index.num_shards)
