"""Extents that processes of a former server may still touch.

Purpose: such an extent is sealed: what it holds is found and read like any other, but nothing is
put there and nothing is evicted for its room, until the last of those processes is gone (design
rule 4). Must not know: how they are watched, files. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from protocol.extents import ExtentGeometry
from protocol.ids import Fingerprint
from server.core.admission import MORE, Lanes, Steps
from server.core.adoption import FoundParty
from server.core.arena import Arena
from server.core.departures import Departures
from server.core.effects import PartyId
from server.core.eviction import PARKED
from server.core.extents import Extent
from server.core.growth import Growth
from server.core.slots import HELD

LANE = "quarantine"

UNSEAL_SLOTS = 256
"""Slots unsealed in one slice; each may be a leaf that is on offer again."""


class Quarantine:
    """Parties and what waits for them.

    Args:
        arena: slots and extents.
        growth: the budget.
        departures: gives back extents that are empty.
        lanes: long work.
        fault: notes an error of our own.
    """

    def __init__(
        self,
        arena: Arena,
        growth: Growth,
        departures: Departures,
        lanes: Lanes,
        fault: Callable[[Exception], None],
    ) -> None:
        self._arena = arena
        self._growth = growth
        self._departures = departures
        self._lanes = lanes
        self._fault = fault
        self._parties: dict[PartyId, frozenset[Fingerprint] | None] = {}
        self._foreign: list[tuple[ExtentGeometry, set[PartyId]]] = []

    @property
    def num_parties(self) -> int:
        """Processes that are waited for."""
        return len(self._parties)

    @property
    def sealed_bytes(self) -> int:
        """What waits for them, extents that were not taken over included."""
        mine = sum(extent.file_bytes for extent in self._arena.extents.values() if extent.sealed)
        return mine + self._growth.foreign_bytes

    def begin(self, parties: Iterable[FoundParty]) -> None:
        """Notes who is waited for; before any extent is sealed."""
        for one in parties:
            self._parties[one.party] = one.fingerprints

    def _touching(self, geometry: ExtentGeometry) -> set[PartyId]:
        return {
            party
            for party, spaces in self._parties.items()
            if spaces is None or geometry.fingerprint in spaces
        }

    def seal(self, extent: Extent) -> None:
        """Seals an extent that was taken over, if somebody may still touch it."""
        extent.parties = self._touching(extent.geometry)
        if extent.parties:
            extent.sealed = True
            run = slice(extent.base, extent.base + extent.geometry.num_slots)
            self._arena.slots.sealed[run] = 1

    def count_foreign(self, geometry: ExtentGeometry) -> None:
        """Counts an extent that was not taken over while somebody may have it mapped."""
        touching = self._touching(geometry)
        if touching:
            self._foreign.append((geometry, touching))
            self._growth.foreign_bytes += geometry.file_bytes

    def party_gone(self, party: PartyId) -> None:
        """A party exited, or touches nothing any more; unknown ones are ignored."""
        if party not in self._parties:
            return
        del self._parties[party]
        for geometry, touching in self._foreign:
            touching.discard(party)
            if not touching:
                self._growth.foreign_bytes -= geometry.file_bytes
        self._foreign = [one for one in self._foreign if one[1]]
        freed = []
        for extent in self._arena.extents.values():
            if party in extent.parties:
                extent.parties.remove(party)
                if not extent.parties:
                    freed.append(extent)
        self._lanes.start(LANE, self._unseal(freed), self._fault)

    def _unseal(self, extents: list[Extent]) -> Steps:
        for extent in extents:
            end = extent.base + extent.geometry.num_slots
            for begin in range(extent.base, end, UNSEAL_SLOTS):
                self._unseal_run(extent, begin, min(end, begin + UNSEAL_SLOTS))
                yield MORE
            extent.sealed = False
        self._growth.serve()
        for owner in {extent.owner.fingerprint: extent.owner for extent in extents}.values():
            self._departures.shrink(owner)
            yield MORE

    def _unseal_run(self, extent: Extent, begin: int, end: int) -> None:
        """Unseals slots and puts leaves on offer that were passed over meanwhile."""
        slots, owner = self._arena.slots, extent.owner
        slots.sealed[begin:end] = 0
        held = slots.state[begin:end] == HELD
        held &= slots.generation[begin:end] > owner.cleared_generation
        nodes = slots.node[begin:end][held]
        flags = np.frombuffer(owner.index.flags, dtype=np.uint8)[nodes]
        for node in nodes[(flags & PARKED) != 0].tolist():
            owner.leaves.offer(node)
