"""One warm job: what is listed, what is on its way, and how far it is.

Must not know: how chunks are brought, who asked for it. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.ids import ID_BYTES, Fingerprint
from server.core.admission import Task
from server.core.effects import ProcessId
from server.core.index import ChunkIndex
from server.core.namespaces import Owner
from server.core.tiers.runs import Run
from server.core.tiers.tier import Tier
from server.wording import counted

SHOWN = 4
"""Namespaces that are named to somebody who asked for one that is none."""

_NO_PARENT = bytes(ID_BYTES)


class Segment(NamedTuple):
    """Consecutive chunks of a chain.

    Attributes:
        parent: key of the chunk before the first; empty at a chain's start.
        keys: 16 bytes per chunk.
    """

    parent: bytes
    keys: bytes

    @property
    def num_chunks(self) -> int:
        """How many."""
        return len(self.keys) // ID_BYTES

    def after(self, count: int) -> Segment:
        """What follows its first chunks."""
        at = count * ID_BYTES
        return Segment(self.keys[at - ID_BYTES : at], self.keys[at:]) if count else self

    def first(self, count: int) -> Segment:
        """Its first chunks."""
        return Segment(self.parent, self.keys[: count * ID_BYTES])


def segments(pairs: bytes) -> list[Segment]:
    """Cuts a page into chains.

    Args:
        pairs: key and parent's key of each chunk, 16 bytes each, zeros for no parent.

    Returns:
        As few segments as possible without another order.
    """
    found: list[Segment] = []
    keys, parent, last = bytearray(), b"", b""
    for at in range(0, len(pairs) - 2 * ID_BYTES + 1, 2 * ID_BYTES):
        key, before = pairs[at : at + ID_BYTES], pairs[at + ID_BYTES : at + 2 * ID_BYTES]
        if not keys or before != last:
            if keys:
                found.append(Segment(parent, bytes(keys)))
            keys, parent = bytearray(), b"" if before == _NO_PARENT else before
        keys += key
        last = key
    if keys:
        found.append(Segment(parent, bytes(keys)))
    return found


@dataclass(eq=False)
class Source:
    """One namespace in one tier.

    Attributes:
        tier: which.
        owner: the namespace.
        index: its index when it was first looked at; another one now means it was cleared.
        is_begun: its list was begun.
        has_more: its list has further pages.
        total: chunks in its list.
        waiting: listed and not yet begun.
        chunk_bytes: of one chunk with all its parts.
    """

    tier: Tier
    owner: Owner
    index: ChunkIndex
    is_begun: bool = False
    has_more: bool = True
    total: int = 0
    waiting: deque[Segment] = field(default_factory=deque)
    chunk_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Adds up a chunk's parts."""
        sizes = map(self.owner.namespace.slot_payload_bytes, range(self.owner.num_shards))
        self.chunk_bytes = max(1, sum(sizes))

    @property
    def is_cleared(self) -> bool:
        """Whether CLEAR has forgotten what was listed."""
        return self.index is not self.owner.index


@dataclass(eq=False)
class Warm:
    """One job.

    Attributes:
        number: of the job.
        process: who asked for it.
        fingerprint: of the one namespace wanted; empty for all.
        max_bytes: most that is loaded, 0 for no bound.
        keys: of the one prefix wanted, 16 bytes per chunk; empty for what tiers list.
        listed: chunks that tiers say they have.
        held: of these, those that were in L1.
        num_chunks: those loaded.
        num_bytes: the same.
        missed: those that did not come.
        is_full: L1 has no room for more.
        is_over: nothing more comes.
        why: why, once it is over.
        trouble: what went wrong last, or empty.
        rides: chains on their way.
        owners: namespaces that are kept for it.
        known: namespaces that tiers named, while one is wanted.
        task: its work.
    """

    number: int
    process: ProcessId
    fingerprint: Fingerprint
    max_bytes: int
    keys: bytes = b""
    listed: int = 0
    held: int = 0
    num_chunks: int = 0
    num_bytes: int = 0
    missed: int = 0
    is_full: bool = False
    is_over: bool = False
    why: str = ""
    trouble: str = ""
    rides: dict[Ride, None] = field(default_factory=dict)
    owners: dict[Fingerprint, Owner] = field(default_factory=dict)
    known: dict[Fingerprint, None] = field(default_factory=dict)
    task: Task | None = None

    def summary(self) -> str:
        """Why it ends by itself."""
        if not self.listed:
            if self.fingerprint and not self.owners and self.known:
                return f"no tier knows this namespace; known: {self._named()}"
            nothing = "no tier knows this namespace" if self.keys else "no tier lists anything"
            return self.trouble or nothing
        if self.missed:
            one, several = "chunk was not found", "chunks were not found"
            if not self.keys:
                one, several = "chunk could not be read", "chunks could not be read"
            text = counted(self.missed, one, several)
            return f"{text}: {self.trouble}" if self.trouble else text
        return "all that was wanted is there" if self.keys else "all that tiers list is there"

    def _named(self) -> str:
        names = [name.hex() for name in self.known]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return ", ".join(names[:SHOWN]) + more


@dataclass(eq=False)
class Ride:
    """A segment on its way. A ``server.core.tiers.runs.Passenger``.

    Attributes:
        job: whose.
        source: where it was listed.
        segment: what is wanted.
        start: ordinal of its first chunk.
        told: called when more of it came, with the run once nothing more comes.
        run: on which it waits.
        count: chunks of it that came.
        is_patient: nothing is evicted for it.
        tenant: nobody's, since no request asks for it.
    """

    job: Warm
    source: Source
    segment: Segment
    start: int
    told: Callable[[Ride, Run | None], None]
    run: Run | None = None
    count: int = 0
    is_patient: bool = True
    tenant: bytes = b""

    @property
    def flow(self) -> str:
        """Whoever warms."""
        return "warming"

    @property
    def owed_bytes(self) -> int:
        """What may still come."""
        return (self.segment.num_chunks - self.count) * self.source.chunk_bytes

    def note(self) -> int:
        """Looks how much of it came; returns how much of that is new."""
        index, before = self.source.index, self.count
        if not self.source.is_cleared:
            there, _ = index.complete_prefix(self.segment.keys, self.start)
            self.count = max(before, there)
        return self.count - before

    def moved(self, run: Run) -> bool:
        """More of its run was published; it waits for the rest."""
        self.told(self, None)
        return True

    def ended(self, run: Run) -> None:
        """Nothing more of its run comes."""
        self.told(self, run)

    def leave(self) -> None:
        """Waits for nothing any more."""
        if self.run is not None:
            self.run.passengers.pop(self, None)
            self.run = None
        self.job.rides.pop(self, None)
