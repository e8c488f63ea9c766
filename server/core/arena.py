"""Extents: creation, sharing with readers, room, and the way back.

Purpose: hand out slots of (owner, shard); grow by a new extent while the budget lasts, evict
within the owner when it does not. An extent that was emptied is taken from its readers and removed
once each has unmapped it or exited; until then its memory counts (design rule 4). Must not know:
files, leases, messages. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from protocol.extents import ExtentGeometry, cut
from protocol.ids import ExtentId, Fingerprint, SessionId
from protocol.limits import MAX_U63
from server.core.clock import Clock
from server.core.config import CoreConfig
from server.core.effects import CreateExtent, GiveExtent, RemoveExtent, TakeExtent
from server.core.eviction import PARKED
from server.core.index import ABSENT, ROOT
from server.core.namespaces import Owner, Session
from server.core.outbox import Outbox
from server.core.slots import FREE, HELD, NO_NODE, RESERVED, ZOMBIE, Slots, SlotTable

RETRY_NS = 1_000_000_000
"""How long a failed creation, or an extent that could not be emptied, is left alone."""

PRESS_NS = 1_000_000
"""How often one owner looks for another's extent that is clearly older."""


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
        num_reserved: slots taken by STOREs.
        num_held: published slots.
        readers: sessions that may have it mapped.
        used_us: mean time of last use of what it holds.
        not_before_ns: when it may be reclaimed again after an attempt failed.
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

    @property
    def extent(self) -> ExtentId:
        """Its id."""
        return self.geometry.extent

    @property
    def file_bytes(self) -> int:
        """What it costs of the budget."""
        return self.geometry.file_bytes

    def note_use(self, num_slots: int, now_us: int) -> None:
        """Moves the mean time of use by what was just published or retrieved."""
        share = min(1.0, num_slots / max(1, self.num_held))
        self.used_us += share * (now_us - self.used_us)


DemandKey = tuple[Fingerprint, int]


@dataclass
class Demand:
    """A wanted extent for (owner, shard).

    Attributes:
        owner: for whom.
        shard: which shard.
        creating: id of the file being created, None before.
        waiters: called once, with whether the extent came.
    """

    owner: Owner
    shard: int
    creating: ExtentId | None = None
    waiters: list[Callable[[bool], None]] = field(default_factory=list)


class Arena:
    """All extents and the budget.

    Args:
        config: settings.
        clock: current time.
        outbox: where effects go.
        slots: state of every slot.

    Attributes:
        extents: by id.
        used_bytes: budget spent, extents that readers still map included.
        demands: wanted extents, oldest first.
        reclaim: set by the reclaimer: starts making room for a demand and says whether any can
            be expected.
        removed: called with the owner of an extent that was removed.
    """

    def __init__(self, config: CoreConfig, clock: Clock, outbox: Outbox, slots: SlotTable) -> None:
        self._config = config
        self._clock = clock
        self._outbox = outbox
        self.slots = slots
        self.extents: dict[ExtentId, Extent] = {}
        self.used_bytes = 0
        self.demands: dict[DemandKey, Demand] = {}
        self.removed: Callable[[Owner], None] = lambda owner: None
        self.reclaim: Callable[[Demand, bool], bool] = lambda demand, force: False
        self._next_extent = 1
        self._create_after_ns = 0

    # --- room -----------------------------------------------------------------------------

    def allocate(self, owner: Owner, shard: int, count: int) -> list[int]:
        """Takes free slots, without evicting.

        Args:
            owner: whose.
            shard: for which shard.
            count: wanted.

        Returns:
            At most ``count`` slot numbers, now RESERVED, ascending where possible.
        """
        taken: list[int] = []
        for extent in owner.extents[shard]:
            if extent.phase is not Phase.LIVE or not extent.free:
                continue
            part = extent.free[: -(count - len(taken)) - 1 : -1]
            del extent.free[len(extent.free) - len(part) :]
            extent.num_reserved += len(part)
            self.slots.state[part] = RESERVED
            taken += part
            if len(taken) == count:
                break
        return taken

    def evict(self, owner: Owner, count: int) -> int:
        """Evicts leaves of an owner, best first.

        Args:
            owner: whose.
            count: at most so many.

        Returns:
            How many went.
        """
        done = 0
        while done < count:
            leaf, stamp = owner.leaves.take(
                self._clock.now_us, lambda node: self.evictable(owner, node)
            )
            if leaf == ABSENT:
                break
            line = owner.index.only_line(leaf, stamp, count - done)
            done += self._drop_line(owner, line)
        self._outbox.counters["evicted_chunks"] += done
        return done

    def _drop_line(self, owner: Owner, line: list[int]) -> int:
        """Evicts a leaf and those of its ancestors, in order, whose slots nobody uses."""
        index, table = owner.index, self.slots
        cells = index.cells[np.array(line, dtype=np.int64)]
        named = cells != ABSENT
        busy = named & ((table.state[cells] != HELD) | (table.pins[cells] != 0))
        if busy.any():
            count = int(busy.any(axis=1).argmax())
            line, cells, named = line[:count], cells[:count], named[:count]
        freed = cells[named].astype(np.int64)
        table.state[freed] = FREE
        table.node[freed] = NO_NODE
        for number, mine in table.by_extent(freed):
            extent = self.extents[number]
            extent.num_held -= mine.size
            extent.free += mine.tolist()
        parent = index.remove_line(line)
        if parent != ROOT:
            self.prune(owner, parent)
        return len(line)

    def evictable(self, owner: Owner, node: int) -> bool:
        """Whether a node is a leaf that nothing holds."""
        index = owner.index
        if index.first_child[node] != ABSENT or index.locks[node]:
            return False
        at, slots = node * index.num_shards, self.slots
        for shard in range(index.num_shards):
            slot = index.cell_of[at + shard]
            if slot != ABSENT and (slots.pins_of[slot] or slots.state_of[slot] != HELD):
                return False
        return True

    def drop_leaf(self, owner: Owner, node: int) -> None:
        """Forgets a leaf: its slots become free, or forgotten while they are read.

        Args:
            owner: whose.
            node: no child, no reserved cell.
        """
        index = owner.index
        for shard in range(index.num_shards):
            slot = index.cell(node, shard)
            if slot != ABSENT:
                index.vacate(node, shard, was_held=True)
                self.forget(slot)
        self.prune(owner, node)

    def prune(self, owner: Owner, node: int) -> None:
        """Removes a node, and then its ancestors, as far as nothing justifies them.

        Args:
            owner: whose.
            node: where to begin.
        """
        index = owner.index
        while node != ROOT and index.is_empty(node):
            node = index.remove(node)
        if node != ROOT:
            owner.leaves.offer(node)

    def forget(self, slot: int) -> None:
        """Lets a published slot go that the index does not name any more."""
        slots, extent = self.slots, self.extents[ExtentId(self.slots.extent_of[slot])]
        extent.num_held -= 1
        slots.node_of[slot] = NO_NODE
        if slots.pins_of[slot]:
            slots.state_of[slot] = ZOMBIE
        else:
            slots.state_of[slot] = FREE
            extent.free.append(slot)

    def abandon(self, slot: int) -> None:
        """Frees a reserved slot; no copy into it is in flight."""
        extent = self.extents[ExtentId(self.slots.extent_of[slot])]
        extent.num_reserved -= 1
        self.slots.state_of[slot] = FREE
        self.slots.node_of[slot] = NO_NODE
        extent.free.append(slot)

    def unpin(self, owner: Owner, slots: Slots) -> None:
        """Takes one pin from each slot and lets go what nobody reads any more.

        Args:
            owner: whose slots.
            slots: int64[n], each at most once.
        """
        idle = self.slots.unpin(slots)
        nodes = self.slots.node[idle]
        for slot in idle[nodes == NO_NODE].tolist():
            self.slots.state_of[slot] = FREE
            self.extents[ExtentId(self.slots.extent_of[slot])].free.append(slot)
        kept = (nodes != NO_NODE) & (self.slots.generation[idle] > owner.cleared_generation)
        nodes = nodes[kept]
        flags = np.frombuffer(owner.index.flags, dtype=np.uint8)[nodes]
        for node in nodes[(flags & PARKED) != 0].tolist():
            owner.leaves.offer(node)

    def is_cleared(self, owner: Owner, slot: int) -> bool:
        """Whether a published slot belongs to an index that CLEAR has replaced."""
        return int(self.slots.generation[slot]) <= owner.cleared_generation

    # --- growth ---------------------------------------------------------------------------

    def geometry(self, owner: Owner, shard: int, room_bytes: int) -> ExtentGeometry | None:
        """How the next extent of (owner, shard) would be cut, within some room.

        Args:
            owner: for whom.
            shard: which shard.
            room_bytes: what there is.

        Returns:
            A whole extent, a smaller one in the last quarter of the budget, or None.
        """
        wanted = self._config.extent_bytes
        if room_bytes * 4 < wanted:
            return None
        for size_bytes in (wanted, min(wanted, room_bytes)):
            geometry = cut(
                ExtentId(self._next_extent),
                owner.fingerprint,
                shard,
                owner.namespace.chunk_blocks,
                owner.namespace.slot_payload_bytes(shard),
                size_bytes,
            )
            if geometry.file_bytes <= room_bytes and size_bytes * 4 >= wanted:
                return geometry
        return None

    def needed_bytes(self, owner: Owner, shard: int) -> int:
        """Cost of one extent of (owner, shard), be it more than the whole arena."""
        for room_bytes in (self._config.arena_bytes, MAX_U63):
            geometry = self.geometry(owner, shard, room_bytes)
            if geometry is not None:
                return geometry.file_bytes
        raise AssertionError("unlimited room holds one slot")

    @property
    def free_bytes(self) -> int:
        """Budget that is not spent."""
        return self._config.arena_bytes - self.used_bytes

    def demand(
        self,
        owner: Owner,
        shard: int,
        waiter: Callable[[bool], None] | None,
        force: bool = False,
    ) -> bool:
        """Asks for another extent of (owner, shard).

        Args:
            owner: for whom.
            shard: which shard.
            waiter: called once when the extent came or could not come.
            force: take another owner's even if that is not clearly older.

        Returns:
            Whether one can be expected; the waiter is kept only then.
        """
        key = (owner.fingerprint, shard)
        demand = self.demands.get(key)
        if demand is None:
            demand = Demand(owner, shard)
            if not self._create(demand) and not self.reclaim(demand, force):
                return False
            self.demands[key] = demand
        if waiter is not None:
            demand.waiters.append(waiter)
        return True

    def can_grow(self, owner: Owner, shard: int) -> bool:
        """Whether the budget has room for another extent of (owner, shard), or it is coming."""
        demand = self.demands.get((owner.fingerprint, shard))
        if demand is not None:
            return demand.creating is not None
        if self._is_ahead(owner, shard):
            return False
        return (
            self._clock.now_ns >= self._create_after_ns
            and self.geometry(owner, shard, self.free_bytes) is not None
        )

    def _is_ahead(self, owner: Owner, shard: int) -> bool:
        # A chunk needs a slot of every full-attention shard, so one that took most of the budget
        # would only store what cannot become complete.
        if not owner.index.full[shard]:
            return False
        full = zip(owner.extents, owner.index.full, strict=True)
        return len(owner.extents[shard]) > min(len(extents) for extents, is_full in full if is_full)

    def _create(self, demand: Demand) -> bool:
        if self._clock.now_ns < self._create_after_ns:
            return False
        geometry = self.geometry(demand.owner, demand.shard, self.free_bytes)
        if geometry is None:
            return False
        self._next_extent += 1
        base = self.slots.add_extent(geometry.extent, geometry.num_slots)
        extent = Extent(
            geometry=geometry,
            owner=demand.owner,
            base=base,
            phase=Phase.CREATING,
            free=list(range(base + geometry.num_slots - 1, base - 1, -1)),
            used_us=float(self._clock.now_us),
        )
        self.extents[geometry.extent] = extent
        demand.owner.extents[demand.shard].append(extent)
        self.used_bytes += geometry.file_bytes
        demand.creating = geometry.extent
        self._outbox.add(CreateExtent(geometry))
        return True

    def created(self, extent_id: ExtentId, error: str | None, readers: list[Session]) -> None:
        """CreateExtent ended.

        Args:
            extent_id: which.
            error: why it failed, or None.
            readers: sessions of the owner; those that read the shard are given the extent.
        """
        extent = self.extents.get(extent_id)
        if extent is None or extent.phase is not Phase.CREATING:
            return
        key = (extent.owner.fingerprint, extent.geometry.shard)
        demand = self.demands.pop(key, None)
        if error is None:
            extent.phase = Phase.LIVE
            for session in readers:
                if extent.geometry.shard in session.shards:
                    self.give(extent, session)
        else:
            self._outbox.counters["extents_failed"] += 1
            self._create_after_ns = self._clock.now_ns + RETRY_NS
            self._remove(extent)
        for waiter in demand.waiters if demand is not None else ():
            waiter(error is None)

    def give_up(self, demand: Demand) -> None:
        """Tells a demand's waiters that no extent comes."""
        if self.demands.get((demand.owner.fingerprint, demand.shard)) is demand:
            del self.demands[demand.owner.fingerprint, demand.shard]
        for waiter in demand.waiters:
            waiter(False)

    def serve(self) -> None:
        """Creates extents for waiting demands, oldest first, as far as the budget goes."""
        for demand in list(self.demands.values()):
            if demand.creating is not None:
                continue
            if not demand.owner.sessions:
                self.give_up(demand)
            elif not self._create(demand):
                if not self.reclaim(demand, True):
                    self.give_up(demand)
                break

    def look_ahead(self, owner: Owner, shard: int) -> None:
        """Has the next extent created before the last one is full, so that nobody waits."""
        extents = owner.extents[shard]
        free = sum(len(extent.free) for extent in extents if extent.phase is Phase.LIVE)
        if 4 * free < extents[-1].geometry.num_slots and self.can_grow(owner, shard):
            self.demand(owner, shard, None)

    def press(self, owner: Owner, shard: int) -> None:
        """The budget is spent: takes another owner's extent if that is clearly older."""
        now_ns = self._clock.now_ns
        if now_ns < max(owner.pressed_ns + PRESS_NS, self._create_after_ns):
            return
        owner.pressed_ns = now_ns
        if not self._is_ahead(owner, shard):
            self.demand(owner, shard, None)

    # --- readers --------------------------------------------------------------------------

    def give(self, extent: Extent, session: Session) -> None:
        """Passes an extent to a reader."""
        extent.readers[session.session] = session
        session.extents[extent.extent] = False
        unmapped = session.instance.unmapped
        unmapped[extent.extent] = unmapped.get(extent.extent, 0) + 1
        self._outbox.add(GiveExtent(session.process, session.session, extent.geometry))

    def mapped(self, session: Session, extent_id: ExtentId) -> None:
        """A reader has mapped and populated an extent."""
        if session.extents.get(extent_id) is False:
            session.extents[extent_id] = True
            self._count_mapped(session, extent_id)

    def unmapped(self, session: Session, extent_id: ExtentId) -> None:
        """A reader has unmapped an extent, or failed to map it, or is gone."""
        was_mapped = session.extents.get(extent_id)
        if was_mapped is None:
            return
        extent = self.extents[extent_id]
        if extent.phase is Phase.TAKEN:
            self.let_go(extent, session)
        elif was_mapped:
            # It still has the descriptor: not ready for it, and asked again when it is taken.
            session.extents[extent_id] = False
            unmapped = session.instance.unmapped
            unmapped[extent_id] = unmapped.get(extent_id, 0) + 1

    def let_go(self, extent: Extent, session: Session) -> None:
        """A reader is known to have no mapping of an extent any more."""
        if session.extents.pop(extent.extent, None) is False:
            self._count_mapped(session, extent.extent)
        extent.readers.pop(session.session, None)
        if extent.phase is Phase.TAKEN and not extent.readers:
            self._remove(extent)
            self.serve()

    def _count_mapped(self, session: Session, extent_id: ExtentId) -> None:
        unmapped = session.instance.unmapped
        unmapped[extent_id] -= 1
        if not unmapped[extent_id]:
            del unmapped[extent_id]

    def take(self, extent: Extent) -> None:
        """Takes an emptied extent from its readers; it goes when all have unmapped it.

        Args:
            extent: without used slots.
        """
        extent.phase = Phase.TAKEN
        for session in extent.readers.values():
            self._outbox.add(TakeExtent(session.process, session.session, extent.extent))
        if not extent.readers:
            self._remove(extent)
            self.serve()

    def _remove(self, extent: Extent) -> None:
        was_created = extent.phase is not Phase.CREATING
        self.slots.remove_extent(extent.base, extent.geometry.num_slots)
        extent.owner.extents[extent.geometry.shard].remove(extent)
        del self.extents[extent.extent]
        self.used_bytes -= extent.file_bytes
        if was_created:
            self._outbox.add(RemoveExtent(extent.extent))
        self.removed(extent.owner)
