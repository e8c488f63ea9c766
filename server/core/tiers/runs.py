"""One run: consecutive chunks on their way from a tier into L1, and who waits for them.

Purpose: what is known of a run between two of its steps. A run begins at the first chunk of a chain
that L1 lacks; every prefetch that lacks the same chunk rides along. Must not know: how slots are
found, what a tier is asked, messages. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from protocol.ids import ID_BYTES, InstanceId
from server.core.admission import Task
from server.core.index import ABSENT, ChunkIndex
from server.core.namespaces import Owner
from server.core.stores import Filling
from server.core.tiers.misses import Miss
from server.core.tiers.tier import Tier

NOBODY = InstanceId(bytes(ID_BYTES))
"""Whose chunks those are that came from a tier, in their records."""


class Passenger(Protocol):
    """Who waits for a run's chunks.

    Attributes:
        is_patient: it asks ahead of need: nothing is evicted for what only such ones wait for.
        tenant: digest of the salt of the request that asks, or empty.
        flow: for whom it waits, such as an engine; those take turns.
    """

    is_patient: bool
    tenant: bytes

    @property
    def flow(self) -> Hashable:
        """For whom."""

    def moved(self, run: Run) -> bool:
        """More of it was published; returns whether this one goes on waiting for it."""

    def ended(self, run: Run) -> None:
        """Nothing more of it comes, and nothing of it is reserved any more."""


class Span(NamedTuple):
    """Part of a piece: consecutive chunks of one shard.

    Attributes:
        share: whose slots they fill.
        first: first chunk of the run.
        length: chunks.
        at: its first status among the piece's.
    """

    share: Share
    first: int
    length: int
    at: int


@dataclass
class Piece:
    """Whole chunks that are read at once.

    Attributes:
        first: first chunk of the run.
        end: the one after its last.
        spans: its parts, shard by shard.
        statuses: one per part, as far as answered.
        num_unanswered: reads that may still touch its slots.
    """

    first: int
    end: int
    spans: list[Span]
    statuses: bytearray
    num_unanswered: int = 0


@dataclass(kw_only=True)
class Share(Filling):
    """One shard of a run.

    Attributes:
        run: which run.
        is_needed: a chunk without it does not count.
    """

    run: Run
    is_needed: bool

    @property
    def owner(self) -> Owner:
        """Its namespace."""
        return self.run.owner

    @property
    def writer(self) -> InstanceId:
        """Nobody's pages."""
        return NOBODY

    @property
    def end(self) -> int:
        """Chunks of the run that are held, or have a slot."""
        return self.held + len(self.slots)

    def forfeit(self) -> None:
        """DELETE reached one of its slots: nothing more of the whole run is published."""
        self.cleared = self.run.cleared = True


@dataclass(kw_only=True)
class Run:
    """One promotion.

    Attributes:
        owner: the namespace.
        index: its index when the run began; another one now means it was cleared.
        start: ordinal of its first chunk.
        parent_key: key before that, or empty.
        keys: 16 bytes per chunk.
        tier: from where; None while nobody is asked.
        count: leading chunks that shall come, as far as known.
        shares: one per shard, while something is read.
        chunks_per_piece: chunks that are read at once.
        frontier: chunks published.
        landing: the same, those included that are being published right now.
        sent: chunks that reads were begun for.
        pieces: reads whose chunks are not published yet, in order.
        probe: number of the question that is open, 0 for none.
        is_stopping: nothing more is read or published; the rest is about to be freed.
        is_left: its tier was left alone while it read: what is unanswered may never be answered,
            even if the tier is well again.
        is_lost: what is unanswered will be only when a stuck porter ends, maybe never.
        num_drops: bad values that the tier is told to forget, and has not answered about.
        cleared: DELETE reached it.
        why: why it did not come further; None where no tier has more.
        is_over: nothing more comes, and whoever waited is being told so.
        passengers: who waits for it, in the order of coming.
        task: its work.
        anchor: node of the last chunk that is published, or being published, or of the one before
            the run: locked; or ABSENT.
        anchor_life: of that node; another one now means that DELETE removed it.
        spares: it was begun ahead of need: nothing is evicted for it.
        tenant: digest of the salt of the request that began it, or empty.
        flow: for whom it was begun.
    """

    owner: Owner
    index: ChunkIndex
    start: int
    parent_key: bytes
    keys: bytes
    tier: Tier | None = None
    count: int = 0
    shares: list[Share] = field(default_factory=list)
    chunks_per_piece: int = 1
    frontier: int = 0
    landing: int = 0
    sent: int = 0
    pieces: deque[Piece] = field(default_factory=deque)
    probe: int = 0
    is_stopping: bool = False
    is_left: bool = False
    is_lost: bool = False
    num_drops: int = 0
    cleared: bool = False
    why: Miss | None = None
    is_over: bool = False
    passengers: dict[Passenger, None] = field(default_factory=dict)
    task: Task | None = None
    anchor: int = ABSENT
    anchor_life: int = 0
    spares: bool = False
    tenant: bytes = b""
    flow: Hashable = None

    @property
    def num_chunks(self) -> int:
        """Chunks that were asked for."""
        return len(self.keys) // ID_BYTES

    @property
    def is_cleared(self) -> bool:
        """Whether CLEAR or DELETE touched it."""
        if self.cleared or self.index is not self.owner.index:
            return True
        return self.anchor != ABSENT and self.index.life[self.anchor] != self.anchor_life

    @property
    def num_unanswered(self) -> int:
        """Reads that may still touch its slots."""
        return sum(piece.num_unanswered for piece in self.pieces)

    def key(self, chunk: int) -> bytes:
        """Key of one of its chunks; empty beyond the last."""
        return self.keys[chunk * ID_BYTES : (chunk + 1) * ID_BYTES]

    def lacks(self, key: bytes) -> int:
        """Which of its chunks that are not published has a key, or ABSENT."""
        at = self.keys.find(key, self.frontier * ID_BYTES)
        while at >= 0 and at % ID_BYTES:
            at = self.keys.find(key, at + 1)
        return at // ID_BYTES if at >= 0 else ABSENT
