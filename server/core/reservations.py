"""From a STORE's or a promotion's keys to slots of its own, and back when it publishes nothing.

Purpose: skip what is held, reserve a slot for each further chunk in slices, evicting or asking for
an extent where there is none, and free reserved slots again. Must not know: how copying is done,
what COMMIT publishes. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.messages import StopReason
from server.core.accounts import COMMON
from server.core.admission import MORE, WALK_BLOCKS, Lanes, Steps
from server.core.arena import Arena
from server.core.clock import Clock
from server.core.effects import VoidRecords
from server.core.growth import Growth
from server.core.index import ABSENT, ROOT
from server.core.outbox import Outbox
from server.core.quotas import Quotas
from server.core.roster import Roster
from server.core.slots import NO_NODE, Slots
from server.core.stores import Filling
from server.core.tenantleaves import Whose

RESERVE_BLOCKS = 32
"""Chunks reserved in one slice: a chunk costs 1.5 µs, so 64 were a burst on a busy machine."""

EVICT_BLOCKS = 32
"""Leaves evicted in one slice of a STORE; reserving their slots is the next one."""

FREE_BLOCKS = 16
"""Reserved slots freed in one slice; each costs more than a reservation."""


class Reservations:
    """Slots that STOREs and promotions have taken and not published.

    Args:
        clock: current time.
        outbox: where effects go.
        arena: slots and extents.
        growth: new extents.
        lanes: where those that wait for an extent are woken.
        quotas: who may take how much from whom.
        roster: every namespace; before the first chunk of an account is added to one, its order
            of eviction is told to tell accounts apart.

    Attributes:
        by_slot: the plan that reserved a slot.
    """

    def __init__(
        self,
        clock: Clock,
        outbox: Outbox,
        arena: Arena,
        growth: Growth,
        lanes: Lanes,
        quotas: Quotas,
        roster: Roster,
    ) -> None:
        self._quotas = quotas
        self._roster = roster
        self._clock = clock
        self._outbox = outbox
        self._arena = arena
        self._growth = growth
        self._slots = arena.slots
        self._lanes = lanes
        self.by_slot: dict[int, Filling] = {}

    # --- what is held ---------------------------------------------------------------------

    def begin(self, plan: Filling) -> None:
        """Finds where a STORE continues and locks that node; sets ``stop`` if it cannot."""
        self._find_held(plan)
        if plan.stop is StopReason.NONE and plan.tip != ROOT:
            plan.anchor, plan.anchor_life = plan.tip, plan.index.life[plan.tip]
            plan.index.locks[plan.anchor] += 1

    def unlock(self, plan: Filling) -> None:
        """Gives the lock of ``begin`` back; nothing without one."""
        index, node = plan.index, plan.anchor
        lives = index is plan.owner.index and index.life[node] == plan.anchor_life
        plan.anchor = ABSENT
        if node == ABSENT:
            return
        if not lives:
            plan.cleared = True
        else:
            plan.index.locks[node] -= 1
            plan.owner.leaves.offer(node)

    def _find_held(self, plan: Filling) -> None:
        index, shard = plan.index, plan.shard
        if plan.start:
            plan.tip = index.find(plan.parent_key)
            if plan.tip == ABSENT or index.depth[plan.tip] != plan.start - 1:
                plan.stop = StopReason.MISSING_PARENT
                return
            if index.full[shard] and not index.holds(plan.tip, shard):
                plan.stop = StopReason.MISSING_PARENT
                return
        if index.full[shard]:
            plan.held, deepest = index.held_prefix(plan.keys, plan.start, shard)
        else:
            plan.held, deepest = self._window_prefix(plan)
        if plan.held:
            plan.tip = deepest
            index.touch(deepest, self._clock.now_us)

    def _window_prefix(self, plan: Filling) -> tuple[int, int]:
        # A window group's cells are not prefix-closed; some probes suffice, since what is held
        # and not counted here only ends the STORE early.
        index, count, deepest = plan.index, 0, plan.tip
        while count < min(plan.num_chunks, WALK_BLOCKS):
            node = index.find(plan.key(count))
            # Keys that are no chain are no hit.
            if node == ABSENT or index.parent[node] != deepest:
                break
            if not index.holds(node, plan.shard):
                break
            count, deepest = count + 1, node
        return count, deepest

    # --- reserving ------------------------------------------------------------------------

    def reserve(self, plan: Filling, most: int = RESERVE_BLOCKS) -> Slots | None:
        """Reserves slots for up to one slice of further chunks.

        Args:
            plan: begun; ``slots``, ``good`` and ``tip`` advance, ``stop`` is set when no chunk
                can be reserved any more.
            most: chunks that are wanted now, 1 and up.

        Returns:
            int64[n], the new slots; empty when ``stop`` was set, or when this slice went into
            making room. None when an extent is on its way: the plan's task is woken when that is
            decided.
        """
        keys = plan.some_keys(plan.held + len(plan.slots), min(most, RESERVE_BLOCKS))
        found = plan.index.find_all(keys)
        is_new = found.count(ABSENT) == len(found) == len(set(keys))
        count = len(keys) if is_new else self._reservable(plan, keys, found)
        slots = self._room(plan, count) if count else []
        if slots is None:
            return None
        numbers = np.array(slots, dtype=np.int64)
        if slots:
            self._void(numbers)
            nodes = self._nodes(plan, keys[: len(slots)], is_new)
            plan.index.fill(nodes, plan.shard, numbers)
            self._slots.node[numbers] = nodes
            self.by_slot.update(dict.fromkeys(slots, plan))
            slot_bytes = plan.owner.slot_bytes[plan.shard]
            self._arena.accounts.reserved(plan.account, len(slots), slot_bytes)
            plan.tip = int(nodes[-1])
            plan.slots += slots
            plan.good = len(plan.slots)
        return numbers

    def _nodes(self, plan: Filling, keys: list[bytes], is_new: bool) -> NDArray[np.int64]:
        """Nodes for checked keys: those there are, then new ones."""
        if plan.account != COMMON:
            self._roster.count_accounts(plan.owner)
        if is_new:
            return plan.index.add_chain(keys, plan.tip, self._clock.now_us, plan.account)
        # Making room may have evicted some that were there before.
        found = plan.index.find_all(keys)
        known = found.index(ABSENT) if ABSENT in found else len(found)
        nodes = np.array(found, dtype=np.int64)
        if known < len(found):
            parent = found[known - 1] if known else plan.tip
            nodes[known:] = plan.index.add_chain(
                keys[known:], parent, self._clock.now_us, plan.account
            )
        return nodes

    def _reservable(self, plan: Filling, keys: list[bytes], found: list[int]) -> int:
        """How many of the next chunks may be reserved; sets ``stop`` when none may."""
        index, shard, tip = plan.index, plan.shard, plan.tip
        absent: set[bytes] = set()
        for offset, (key, node) in enumerate(zip(keys, found, strict=True)):
            if node == ABSENT and key not in absent:
                absent.add(key)
                continue
            stop = StopReason.NONE
            # After an absent chunk all further ones are absent, or belong to another chain.
            if absent or index.parent[node] != tip:
                stop = StopReason.MISSING_PARENT
            elif index.cell(node, shard) != ABSENT:
                stop = StopReason.BUSY
            if stop is not StopReason.NONE:
                if offset == 0:
                    plan.stop = stop
                return offset
            tip = node
        return len(keys)

    def _room(self, plan: Filling, count: int) -> list[int] | None:
        allowed = self._quotas.salt_room(plan.account, plan.owner.slot_bytes[plan.shard], count)
        if allowed:
            return self._take(plan, allowed)
        # At its limit: its own chunks make room.
        if plan.spares or not self._evict_own(plan, count):
            plan.stop = StopReason.NO_ROOM
        return []

    def _evict_own(self, plan: Filling, count: int) -> int:
        """Evicts chunks of a plan's account; how many went, 0 only when none can go anywhere.

        Those of its namespace go first. A salt's limit counts all of them, so where nothing goes
        there, another one's must: else what is spent there would bar the salt here for ever.
        """
        home, arena, number = plan.owner, self._arena, plan.account
        gone = arena.evict(home, min(EVICT_BLOCKS, count), number, Whose.OWN)
        if gone:
            return gone
        wanted_bytes = count * home.slot_bytes[plan.shard]
        held_in = self._quotas.accounts.by_number[number].held_in
        for name in sorted(held_in, key=held_in.__getitem__, reverse=True):
            owner = self._roster.owners.get(name)
            if owner is None or owner is home:
                continue
            chunks = -(-wanted_bytes // sum(owner.slot_bytes))
            gone = arena.evict(owner, min(EVICT_BLOCKS, chunks), number, Whose.OWN)
            if gone:
                return gone
        return 0

    def _take(self, plan: Filling, count: int) -> list[int] | None:
        owner, shard, arena, growth = plan.owner, plan.shard, self._arena, self._growth
        slots = arena.allocate(owner, shard, count)
        if len(slots) == count:
            growth.look_ahead(owner, shard)
            return slots
        waiter = self._waker(plan)
        if growth.can_grow(owner, shard) and growth.demand(owner, shard, None if slots else waiter):
            return slots or None
        if plan.spares:
            if not slots:
                plan.stop = StopReason.NO_ROOM
            return slots
        if self._quotas.is_space_short(owner) and growth.claim(
            owner, shard, None if slots else waiter
        ):
            return slots or None
        growth.press(owner, shard)
        # What is there is taken in this slice, and what goes is taken in the next one: making room
        # and taking it at once would be a burst.
        is_short = self._quotas.is_salt_short(plan.account)
        whose, evicted = Whose.OTHERS if is_short else Whose.ANYONES, min(EVICT_BLOCKS, count)
        if slots or arena.evict(owner, evicted, plan.account, whose):
            return slots
        if growth.demand(owner, shard, waiter, force=True):
            return None
        if is_short and arena.evict(owner, evicted, plan.account):
            return []
        plan.stop = StopReason.NO_ROOM
        return []

    def _waker(self, plan: Filling) -> Callable[[bool], None]:
        def wake(came: bool) -> None:
            if not came and plan.stop is StopReason.NONE:
                plan.stop = StopReason.NO_ROOM
            if plan.task is not None and not plan.planned:
                self._lanes.wake(plan.task)

        return wake

    def _void(self, numbers: Slots) -> None:
        dirty = numbers[self._slots.generation[numbers] != 0]
        if dirty.size:
            self._slots.generation[dirty] = 0
            for extent, part in self._slots.by_extent(dirty):
                self._outbox.add(VoidRecords(extent, self._slots.local[part], reused=True))

    # --- giving back ----------------------------------------------------------------------

    def free(self, plan: Filling, slots: list[int]) -> Steps:
        """Frees slots that a STORE reserved and does not publish, in slices.

        Args:
            plan: whose; no copy into the slots is in flight.
            slots: in the order of its chunks; those it published already are left out.
        """
        # Deepest first, so that no reserved chunk is ever without its parent.
        for number, slot in enumerate(reversed(slots)):
            if number % FREE_BLOCKS == 0 and len(slots) > FREE_BLOCKS:
                yield MORE
            if self.by_slot.get(slot) is not plan:
                continue
            node = self._slots.node_of[slot]
            if node != NO_NODE and plan.index is plan.owner.index:
                plan.index.vacate(node, plan.shard, was_held=False)
                self._arena.prune(plan.owner, node)
            del self.by_slot[slot]
            self._arena.accounts.reserved(plan.account, -1, plan.owner.slot_bytes[plan.shard])
            self._arena.abandon(slot)

    def detach(self, slot: int) -> None:
        """DELETE reached a reserved slot: who took it publishes nothing."""
        plan = self.by_slot[slot]
        node = self._slots.node_of[slot]
        self._slots.node_of[slot] = NO_NODE
        plan.index.vacate(node, plan.shard, was_held=False)
        self.unlock(plan)
        plan.forfeit()
