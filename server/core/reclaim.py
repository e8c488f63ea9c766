"""Taking an extent from one owner for another.

Purpose: when the budget is spent, the extent whose bytes were unused for the longest is emptied,
descendants included, and taken from its readers. Never one that is being read or copied into,
never the last one of an owner with live engines (P17), and none of a reader that does not answer.
Must not know: messages, files. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Fingerprint, SessionId
from server.core.admission import MORE, WALK_BLOCKS, Lanes, Steps
from server.core.arena import Arena
from server.core.clock import Timers
from server.core.extents import Extent, Phase
from server.core.growth import RETRY_NS, Demand, Growth
from server.core.namespaces import Owner, peel
from server.core.quotas import LOOK_SLOTS, Quotas, holds_any
from server.core.readers import Readers
from server.core.slots import HELD

LANE = "reclaim"
CLEARLY = 2
"""Another owner's bytes must be unused this many times longer than one's own oldest."""
MARGIN_US = 10_000
LOOKS = 4
"""Extents looked at in one slice for chunks of salts at their floors, of up to ``LOOK_SLOTS``."""
PATIENCE_NS = 1_000_000_000
"""A reader that was told to unmap an extent and did not for this long is stopped or hangs: what it
has mapped makes no room, and nobody waits for it."""


class Reclaimer:
    """Makes room for demands.

    Args:
        arena: slots and extents.
        growth: the budget; its ``reclaim`` is set to this object's ``begin``.
        readers: from whom emptied extents are taken.
        timers: for a second look at readers that do not answer.
        lanes: long work.
        fault: notes an error of our own.
        quotas: what is left to whom.
    """

    def __init__(
        self,
        arena: Arena,
        growth: Growth,
        readers: Readers,
        timers: Timers,
        lanes: Lanes,
        fault: Callable[[Exception], None],
        quotas: Quotas,
    ) -> None:
        self._quotas = quotas
        self._arena = arena
        self._growth = growth
        self._readers = readers
        self._timers = timers
        self._clock = timers.clock
        self._lanes = lanes
        self._fault = fault
        self._dropped: list[int] = []
        growth.reclaim = self.begin

    def begin(self, demand: Demand, force: bool) -> bool:
        """Starts making room.

        None while what a former server's engines still have mapped is more than the budget leaves:
        whatever was emptied then would make no room.

        Args:
            demand: for whom; may not be among the demands yet.
            force: take what is not clearly older, too.

        Returns:
            Whether room can be expected.
        """
        if self._growth.free_bytes < 0:
            return False
        if self._shortage_bytes(demand) <= 0:
            return True
        victim, is_sure = self._victim(demand, force)
        if victim is None and is_sure:
            return False
        self._lanes.start(LANE, self._run(demand, force), self._fault)
        return True

    def _shortage_bytes(self, demand: Demand) -> int:
        """Bytes that all demands together still lack, given what is already on its way."""
        arena, growth = self._arena, self._growth
        waiting = [one for one in growth.demands.values() if one.creating is None]
        # One that was served between two slices has its bytes already.
        if demand not in waiting and demand.creating is None:
            waiting.append(demand)
        needed = sum(growth.needed_bytes(one.owner, one.shard) for one in waiting)
        coming = sum(
            extent.file_bytes
            for extent in arena.extents.values()
            if extent.phase is Phase.EMPTYING
            or (extent.phase is Phase.TAKEN and not self._is_overdue(extent))
        )
        return needed - coming - growth.free_bytes

    def _is_overdue(self, extent: Extent) -> bool:
        return self._clock.now_ns - extent.taken_ns >= PATIENCE_NS

    def _silent(self) -> set[SessionId]:
        """Readers that do not let go of what was taken from them."""
        return {
            session
            for extent in self._arena.extents.values()
            if extent.phase is Phase.TAKEN and self._is_overdue(extent)
            for session in extent.readers
        }

    def _victim(self, demand: Demand, force: bool) -> tuple[Extent | None, bool]:
        """The extent to empty next, and whether its being None is sure.

        Where salts may keep what extents hold, a look at one costs so much that there are few in
        a call. Those that are kept are left alone for a while, so that the next call goes on.
        """
        now_ns, now_us = self._clock.now_ns, self._clock.now_us
        own = [
            extent.used_us
            for extent in demand.owner.extents[demand.shard]
            if extent.phase is Phase.LIVE
        ]
        limit_us, silent = float(now_us), self._silent()
        if own and not force:
            limit_us = now_us - CLEARLY * (now_us - min(own)) - MARGIN_US
        candidates = [
            extent
            for extent in self._arena.extents.values()
            if extent.owner is not demand.owner
            and extent.used_us <= limit_us
            and extent.not_before_ns <= now_ns
            and self._may_go(extent)
            and silent.isdisjoint(extent.readers)
        ]
        candidates.sort(key=lambda extent: extent.used_us)
        full: dict[tuple[Fingerprint, int], NDArray[np.bool_] | None] = {}
        looks = 0
        for extent in candidates:
            if not self._quotas.leaves_floor(extent) or self._is_read(extent):
                continue
            key = (extent.owner.fingerprint, extent.geometry.shard)
            if key not in full:
                full[key] = self._quotas.full_salts(extent)
            salts = full[key]
            if salts is None:
                return extent, True
            if looks >= LOOKS:
                return None, False
            looks += -(-extent.geometry.num_slots // LOOK_SLOTS)
            if not holds_any(extent, salts):
                return extent, True
            extent.not_before_ns = now_ns + RETRY_NS
        return None, True

    def _is_read(self, extent: Extent) -> bool:
        run = slice(extent.base, extent.base + extent.geometry.num_slots)
        return bool(self._arena.slots.pins[run].any())

    def _may_go(self, extent: Extent) -> bool:
        if extent.phase is not Phase.LIVE or extent.sealed or extent.num_reserved:
            return False
        if not extent.owner.sessions:
            return True
        mine = extent.owner.extents[extent.geometry.shard]
        return sum(1 for other in mine if other.phase is Phase.LIVE and not other.sealed) > 1

    def _run(self, demand: Demand, force: bool) -> Steps:
        while self._shortage_bytes(demand) > 0:
            victim, is_sure = self._victim(demand, force)
            if victim is not None:
                yield from self._empty(victim)
            elif is_sure:
                break
            else:
                yield MORE
        if self._shortage_bytes(demand) > 0 and demand.creating is None:
            self._growth.give_up(demand)
        else:
            self._growth.serve()

    def trim(self, owner: Owner) -> Steps:
        """Takes extents of an owner until it is within its quota's limit, as far as may be.

        The last one of each shard stays while it has engines, and so does what is in use, or what
        salts' floors keep. The namespace's own floor is against others: it keeps nothing here.

        Args:
            owner: whose.
        """
        while self._is_over(owner):
            extents = [extent for of_shard in owner.extents for extent in of_shard]
            for extent in sorted(extents, key=lambda extent: extent.used_us):
                if not self._may_trim(extent):
                    continue
                if self._quotas.may_give(extent, is_own=True):
                    yield from self._empty(extent, is_own=True)
                    break
                yield MORE  # that was a look at every slot of it
            else:
                return

    def _is_over(self, owner: Owner) -> bool:
        return (self._quotas.space_room(owner) or 0) + _bytes_on_their_way(owner) < 0

    def _may_trim(self, extent: Extent) -> bool:
        is_due = extent.not_before_ns <= self._clock.now_ns
        return is_due and self._may_go(extent) and not self._is_read(extent)

    def _empty(self, extent: Extent, is_own: bool = False) -> Steps:
        """Evicts all that an extent holds; leaves it alone when something is in use.

        Args:
            extent: which.
            is_own: for its own namespace's limit, not for others.
        """
        extent.phase = Phase.EMPTYING
        slots, owner = self._arena.slots, extent.owner
        self._dropped.clear()
        begin, end = extent.base, extent.base + extent.geometry.num_slots
        cost = 0
        # Chains were stored in ascending slots, so this way round the walks down are short.
        for slot in range(end - 1, begin - 1, -1):
            if cost >= WALK_BLOCKS:
                cost = 0
                self._void(owner)
                yield MORE
            cost += 1
            if slots.state_of[slot] != HELD:
                continue
            # Most walks drop one leaf, and ``peel`` counts those of one walk only.
            cost += WALK_BLOCKS // 32
            if self._arena.is_cleared(owner, slot):
                self._arena.forget(slot)
            else:
                index, node = owner.index, slots.node_of[slot]
                for pause in peel(owner, node, lambda leaf: self._drop(owner, leaf, is_own)):
                    self._void(owner)
                    yield pause
                if owner.index is index and slots.state_of[slot] == HELD:
                    break
        self._void(owner)
        if slots.state[begin:end].any():
            extent.phase = Phase.LIVE
            extent.not_before_ns = self._clock.now_ns + RETRY_NS
        else:
            self._readers.take(extent)
            if extent.phase is Phase.TAKEN and extent.readers:
                self._timers.at(self._clock.now_ns + PATIENCE_NS, self._growth.serve)
        yield MORE

    def _drop(self, owner: Owner, leaf: int, is_own: bool) -> bool:
        if not self._arena.evictable(owner, leaf):
            return False
        if not self._quotas.may_lose(owner, leaf, is_own):
            return False
        self._arena.drop_leaf(owner, leaf)
        self._dropped.append(leaf)
        return True

    def _void(self, owner: Owner) -> None:
        self._arena.count_reclaimed(len(self._dropped))
        self._arena.tell_evicted(owner, self._dropped)
        self._dropped.clear()
        self._arena.void_forgotten()


def _bytes_on_their_way(owner: Owner) -> int:
    """Of an owner's extents, those that are being emptied or unmapped."""
    return sum(
        extent.file_bytes
        for of_shard in owner.extents
        for extent in of_shard
        if extent.phase in (Phase.EMPTYING, Phase.TAKEN)
    )
