"""Growing: new extents while the budget lasts, and whom to take one from when it does not.

Purpose: a demand for an extent of (owner, shard) is met by creating one, after the reclaimer made
room if need be; whoever waits is told whether it came. An extent counts against the budget until
its file is removed. Must not know: files, leases, messages. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.extents import ExtentGeometry, cut
from protocol.ids import ExtentId, Fingerprint
from protocol.limits import MAX_U63
from server.core.arena import Arena
from server.core.clock import Clock
from server.core.config import CoreConfig
from server.core.effects import CreateExtent, RemoveExtent
from server.core.extents import Extent, Phase
from server.core.namespaces import Owner, Session
from server.core.outbox import Outbox
from server.core.quotas import Quotas
from server.core.readers import Readers

RETRY_NS = 1_000_000_000
"""How long a failed creation, or an extent that could not be emptied, is left alone."""

PRESS_NS = 1_000_000
"""How often one owner looks for another's extent that is clearly older."""

EXTENTS_PER_SHARD = 4
"""An owner of several shards gets extents so short that the arena has room for so many of each."""

LEAST_EXTENT_BYTES = 64 << 10
"""Not shorter than this for that reason."""

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


class Growth:
    """The budget.

    Args:
        config: settings.
        clock: current time.
        outbox: where effects go.
        arena: every extent.
        readers: who is given new ones.
        quotas: how much a namespace may have.

    Attributes:
        used_bytes: budget spent, extents that readers still map included.
        foreign_bytes: extents of a former server that were not taken over and are unlinked, but
            still mapped by processes of its time.
        demands: wanted extents, oldest first.
        reclaim: set by the reclaimer: starts making room for a demand and says whether any can
            be expected.
        removed: called with the owner of an extent that was removed.
    """

    def __init__(
        self,
        config: CoreConfig,
        clock: Clock,
        outbox: Outbox,
        arena: Arena,
        readers: Readers,
        quotas: Quotas,
    ) -> None:
        self._quotas = quotas
        self._config = config
        self._clock = clock
        self._outbox = outbox
        self._arena = arena
        self._slots = arena.slots
        self._readers = readers
        self.used_bytes = 0
        self.foreign_bytes = 0
        self.demands: dict[DemandKey, Demand] = {}
        self.removed: Callable[[Owner], None] = lambda owner: None
        self.reclaim: Callable[[Demand, bool], bool] = lambda demand, force: False
        self._next_extent = 1
        self._create_after_ns = 0
        self._error = ""
        readers.gone = self._gone

    def geometry(self, owner: Owner, shard: int, room_bytes: int) -> ExtentGeometry | None:
        """How the next extent of (owner, shard) would be cut, within some room.

        Args:
            owner: for whom.
            shard: which shard.
            room_bytes: what there is.

        Returns:
            A whole extent, a smaller one in the last quarter of the budget, or None.
        """
        wanted = self._wanted_bytes(owner)
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

    def _wanted_bytes(self, owner: Owner) -> int:
        """Length of an owner's extents, before they are cut to whole slots."""
        wanted, limit_bytes = self._config.extent_bytes, self._quotas.of(owner).limit_bytes
        if owner.num_shards == 1 and not limit_bytes:
            return wanted
        most_bytes = min(limit_bytes or self._config.arena_bytes, self._config.arena_bytes)
        share = most_bytes // (EXTENTS_PER_SHARD * owner.num_shards)
        return min(wanted, max(LEAST_EXTENT_BYTES, share // 4096 * 4096))

    def needed_bytes(self, owner: Owner, shard: int) -> int:
        """Cost of one extent of (owner, shard), be it more than the whole arena."""
        for room_bytes in (self._config.arena_bytes, MAX_U63):
            geometry = self.geometry(owner, shard, room_bytes)
            if geometry is not None:
                return geometry.file_bytes
        raise AssertionError("unlimited room holds one slot")

    def room_bytes(self, owner: Owner) -> int:
        """Budget that an owner may still have, be it by its own limit."""
        room_bytes = self._quotas.space_room(owner)
        return self.free_bytes if room_bytes is None else min(self.free_bytes, room_bytes)

    def limit_bytes(self, owner: Owner) -> int:
        """Most that an owner may have by its quota, 0 for no limit."""
        return self._quotas.of(owner).limit_bytes

    def is_at_limit(self, owner: Owner, shard: int) -> bool:
        """Whether an owner's quota allows it no further extent of a shard."""
        room_bytes = self._quotas.space_room(owner)
        return room_bytes is not None and self.geometry(owner, shard, room_bytes) is None

    @property
    def free_bytes(self) -> int:
        """Budget that is not spent; below zero where a larger arena was found and is in use."""
        return self._config.arena_bytes - self.used_bytes - self.foreign_bytes

    @property
    def trouble(self) -> str:
        """Why no extent can be made for a moment, though the budget may have room; or empty.

        Nobody may wait for the moment to pass: nothing would wake them then.
        """
        return self._error if self._clock.now_ns < self._create_after_ns else ""

    def adopt(self, extents: list[Extent], next_extent: int) -> None:
        """Counts extents that were found at the start.

        Args:
            extents: all of them.
            next_extent: id of the next new one.
        """
        self.used_bytes += sum(extent.file_bytes for extent in extents)
        self._next_extent = max(self._next_extent, next_extent)

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
            if self.is_at_limit(owner, shard):
                return False
            demand = Demand(owner, shard)
            if not self._create(demand) and (self.trouble or not self.reclaim(demand, force)):
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
            and self.geometry(owner, shard, self.room_bytes(owner)) is not None
        )

    def _is_ahead(self, owner: Owner, shard: int) -> bool:
        # A chunk needs a slot of every full-attention shard, so one that took most of the budget
        # would only store what cannot become complete.
        if owner.num_shards == 1 or not owner.index.full[shard]:
            return False
        # Nor does one count by what is sealed: of that others may have less, and nothing is put
        # there whatever they have.
        full = zip(owner.extents, owner.index.full, strict=True)
        return _num_open(owner.extents[shard]) > min(
            _num_open(extents) for extents, is_full in full if is_full
        )

    def _create(self, demand: Demand) -> bool:
        if self._clock.now_ns < self._create_after_ns:
            return False
        owner = demand.owner
        geometry = self.geometry(owner, demand.shard, self.room_bytes(owner))
        if geometry is None:
            return False
        self._next_extent += 1
        base = self._slots.add_extent(geometry.extent, geometry.num_slots)
        extent = Extent(
            geometry=geometry,
            owner=demand.owner,
            base=base,
            phase=Phase.CREATING,
            free=list(range(base + geometry.num_slots - 1, base - 1, -1)),
            used_us=float(self._clock.now_us),
        )
        self._arena.extents[geometry.extent] = extent
        demand.owner.add_extent(extent)
        self.used_bytes += geometry.file_bytes
        demand.creating = geometry.extent
        self._outbox.add(CreateExtent(geometry, demand.owner.numa_nodes.get(demand.shard)))
        return True

    def created(self, extent_id: ExtentId, error: str | None, readers: list[Session]) -> None:
        """CreateExtent ended.

        Args:
            extent_id: which.
            error: why it failed, or None.
            readers: sessions of the owner; those that read the shard are given the extent.
        """
        extent = self._arena.extents.get(extent_id)
        if extent is None or extent.phase is not Phase.CREATING:
            return
        key = (extent.owner.fingerprint, extent.geometry.shard)
        demand = self.demands.pop(key, None)
        if error is None:
            extent.phase = Phase.LIVE
            for session in readers:
                if extent.geometry.shard in session.shards:
                    self._readers.give(extent, session)
        else:
            self._outbox.counters["extents_failed"] += 1
            self._create_after_ns = self._clock.now_ns + RETRY_NS
            self._error = error
            self._remove(extent)
        for waiter in demand.waiters if demand is not None else ():
            waiter(error is None)

    def give_up(self, demand: Demand) -> None:
        """Tells a demand's waiters that no extent comes."""
        if self.demands.get((demand.owner.fingerprint, demand.shard)) is demand:
            del self.demands[demand.owner.fingerprint, demand.shard]
        waiters, demand.waiters = demand.waiters, []  # each is called once, whoever gives up first
        for waiter in waiters:
            waiter(False)

    def serve(self) -> None:
        """Creates extents for waiting demands, oldest first, as far as the budget goes."""
        for demand in list(self.demands.values()):
            if demand.creating is not None:
                continue
            if not demand.owner.is_wanted or self.is_at_limit(demand.owner, demand.shard):
                self.give_up(demand)
            elif not self._create(demand):
                if self.trouble or not self.reclaim(demand, True):
                    self.give_up(demand)
                break

    def look_ahead(self, owner: Owner, shard: int) -> None:
        """Has the next extent created before the last one is full, so that nobody waits."""
        extents = owner.extents[shard]
        short = extents[-1].geometry.num_slots / 4
        for extent in reversed(extents):  # the newest has most of what is free
            if extent.phase is Phase.LIVE and not extent.sealed:
                short -= len(extent.free)
                if short <= 0:
                    return
        if self.can_grow(owner, shard):
            self.demand(owner, shard, None)

    def claim(self, owner: Owner, shard: int, waiter: Callable[[bool], None] | None) -> bool:
        """Takes another owner's extent for one that has less than its floor.

        Args:
            owner: for whom.
            shard: which shard.
            waiter: called once when the extent came or could not come.

        Returns:
            Whether one can be expected; the waiter is kept only then.
        """
        return not self._is_ahead(owner, shard) and self.demand(owner, shard, waiter, force=True)

    def press(self, owner: Owner, shard: int) -> None:
        """The budget is spent: takes another owner's extent if that is clearly older."""
        now_ns = self._clock.now_ns
        if now_ns < max(owner.pressed_ns + PRESS_NS, self._create_after_ns):
            return
        owner.pressed_ns = now_ns
        if not self._is_ahead(owner, shard):
            self.demand(owner, shard, None)

    def _gone(self, extent: Extent) -> None:
        self._remove(extent)
        self.serve()

    def _remove(self, extent: Extent) -> None:
        was_created = extent.phase is not Phase.CREATING
        self._slots.remove_extent(extent.base, extent.geometry.num_slots)
        extent.owner.remove_extent(extent)
        del self._arena.extents[extent.extent]
        self.used_bytes -= extent.file_bytes
        if was_created:
            self._outbox.add(RemoveExtent(extent.extent))
        self.removed(extent.owner)


def _num_open(extents: list[Extent]) -> int:
    return sum(not extent.sealed for extent in extents)
