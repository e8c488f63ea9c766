"""One STORE: what it names, how far it is, and what ended it; and what it shares with a promotion.

Must not know: how it is worked off. Runs in: the loop thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from protocol.errors import KvkeepError
from protocol.ids import ID_BYTES, InstanceId, StoreId
from protocol.messages import StopReason
from server.core.admission import Task
from server.core.index import ABSENT, ROOT, ChunkIndex
from server.core.namespaces import Owner, Session
from server.core.outbox import Ticket


class Stage(Enum):
    """Where a STORE stands."""

    COPYING = 0
    COPIED = 1
    COMMITTING = 2
    ENDING = 3


@dataclass(kw_only=True)
class Filling(ABC):
    """Slots of one shard for consecutive chunks of a chain, to be filled and then published.

    Attributes:
        shard: which shard.
        index: the namespace's index when it began; another one now means it was cleared.
        start: ordinal of its first chunk.
        parent_key: key before the first chunk, or empty.
        keys: 16 bytes per chunk.
        held: leading chunks that were held already.
        slots: slot of each chunk after those, as far as reserved.
        good: chunks after those whose bytes are there, as far as no piece failed.
        stop: why fewer than all.
        planned: nothing more will be reserved.
        cleared: CLEAR or DELETE touched it: nothing more of it is published.
        task: its reservation work.
        anchor: node that is locked while it is planned, or ABSENT.
        anchor_life: of that node; another one now means that DELETE removed it.
        tip: node that the next chunk continues, or ROOT.
        spares: nothing is evicted for it, and nobody's extent is taken.
        tiers: bits of the tiers that have them already, see ``SlotTable.tiers``.
        tenant: digest of the request's salt, or empty.
        account: of that tenant, see ``server.core.accounts``.
    """

    shard: int
    index: ChunkIndex
    start: int
    parent_key: bytes
    keys: bytes
    held: int = 0
    slots: list[int] = field(default_factory=list)
    good: int = 0
    stop: StopReason = StopReason.NONE
    planned: bool = False
    cleared: bool = False
    task: Task | None = None
    anchor: int = ABSENT
    anchor_life: int = 0
    tip: int = ROOT
    spares: bool = False
    tiers: int = 0
    tenant: bytes = b""
    account: int = 0

    @property
    @abstractmethod
    def owner(self) -> Owner:
        """Its namespace."""

    @property
    @abstractmethod
    def writer(self) -> InstanceId:
        """The engine whose pages they are; zeros for nobody's."""

    @property
    def num_chunks(self) -> int:
        """Chunks named."""
        return len(self.keys) // ID_BYTES

    @property
    def is_cleared(self) -> bool:
        """Whether CLEAR or DELETE touched it."""
        if self.cleared or self.index is not self.owner.index:
            return True
        return self.anchor != ABSENT and self.index.life[self.anchor] != self.anchor_life

    def forfeit(self) -> None:
        """DELETE reached one of its slots: nothing more of it is published."""
        self.cleared = True

    def key(self, chunk: int) -> bytes:
        """Key of one of its chunks."""
        return self.keys[chunk * ID_BYTES : (chunk + 1) * ID_BYTES]

    def some_keys(self, first: int, count: int) -> list[bytes]:
        """Keys of at most ``count`` of its chunks from ``first`` on."""
        stop = min(len(self.keys), (first + count) * ID_BYTES)
        return [self.keys[at : at + ID_BYTES] for at in range(first * ID_BYTES, stop, ID_BYTES)]


@dataclass(kw_only=True)
class StorePlan(Filling):
    """One STORE.

    Attributes:
        store: its id.
        session: whose.
        pages: int32[chunks * chunk_blocks].
        ticket: the STORE's reply, owed until it is copied.
        stage: where it stands.
        num_pieces: pieces that wait or fly.
        error: what ended it early.
        cancels: CANCELs that await its end.
        timer: when a copied one gives up waiting for its COMMIT.
    """

    store: StoreId
    session: Session
    pages: NDArray[np.int32]
    ticket: Ticket
    stage: Stage = Stage.COPYING
    num_pieces: int = 0
    error: KvkeepError | None = None
    cancels: list[Ticket] = field(default_factory=list)
    timer: int = 0

    @property
    def owner(self) -> Owner:
        """Its namespace."""
        return self.session.owner

    @property
    def writer(self) -> InstanceId:
        """The engine whose pages they are."""
        return self.session.instance.instance
