"""One extent: its file's geometry, its slots and who may have it mapped.

Must not know: the budget, leases, messages. Runs in: the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from protocol.extents import ExtentGeometry
from protocol.ids import ExtentId, SessionId
from server.core.effects import PartyId
from server.core.namespaces import Owner, Session


class Phase(Enum):
    """Where an extent stands."""

    CREATING = 0
    LIVE = 1
    EMPTYING = 2
    TAKEN = 3


@dataclass
class Extent:
    """One extent file.

    Attributes:
        geometry: how it is cut.
        owner: whose it is.
        base: number of its first slot.
        phase: where it stands.
        free: numbers of its free slots, the next one last.
        num_reserved: slots taken by STOREs; changed by ``add_reserved``.
        num_held: published slots; changed by ``add_held``.
        readers: sessions that may have it mapped.
        used_us: mean time of last use of what it holds.
        not_before_ns: when it may be reclaimed again after an attempt failed.
        taken_ns: when its readers were told to unmap it.
        parties: processes of a former server that may still touch it.
        sealed: nothing new is put into it: there are such parties, or were a moment ago.
    """

    geometry: ExtentGeometry
    owner: Owner
    base: int
    phase: Phase
    free: list[int]
    num_reserved: int = 0
    num_held: int = 0
    readers: dict[SessionId, Session] = field(default_factory=dict)
    used_us: float = 0.0
    not_before_ns: int = 0
    taken_ns: int = 0
    parties: set[PartyId] = field(default_factory=set)
    sealed: bool = False

    @property
    def extent(self) -> ExtentId:
        """Its id."""
        return self.geometry.extent

    @property
    def file_bytes(self) -> int:
        """What it costs of the budget."""
        return self.geometry.file_bytes

    def add_held(self, num_slots: int) -> None:
        """Counts slots that were published, or, below 0, let go."""
        self.num_held += num_slots
        self.owner.held_bytes += num_slots * self.geometry.slot_bytes

    def add_reserved(self, num_slots: int) -> None:
        """Counts slots that were taken, or, below 0, published or given back."""
        self.num_reserved += num_slots
        self.owner.reserved_bytes += num_slots * self.geometry.slot_bytes

    def note_use(self, num_slots: int, now_us: int) -> None:
        """Moves the mean time of use by what was just published or retrieved."""
        share = min(1.0, num_slots / max(1, self.num_held))
        self.used_us += share * (now_us - self.used_us)
