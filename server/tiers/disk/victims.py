"""Which values of a slab go first.

Purpose: those used longest ago, by spans of age, of those that quotas let go; some are chosen at a
time, since choosing looks at every slot. Must not know: names, files, the index. Runs in: the
porter; the catalog's lock guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.tiers.disk.segments import Segment, State
from server.tiers.disk.shares import Shares, Tenant, Whose

Ints = NDArray[np.int64]

VICTIMS_SHARE = 64
"""A 64th of the slots of one size is chosen at a time, so that choosing costs little for each."""


LEAST_VICTIMS = 64
"""Chosen at a time at least, where quotas let only some of the slots go."""


LOOK_MORE = 8
"""So many times as many are looked at where floors leave too few of those that go first."""


class Victim(NamedTuple):
    """A slot to evict, with the stamp it had when it was chosen."""

    segment: Segment
    slot: int
    stamp: int

    @property
    def is_as_chosen(self) -> bool:
        """Whether nobody used it since, or reads it now."""
        segment, slot, stamp = self
        return (
            segment.states[slot] == State.USED
            and segment.stamps[slot] == stamp
            and slot not in segment.pins
        )


class Slots(NamedTuple):
    """Slots that hold something.

    Attributes:
        segments: that were looked at.
        owners: int64[n], which of them each slot is in.
        slots: int64[n].
        stamps: uint64[n].
        ranks: uint64[n], the smallest goes first.
    """

    segments: Sequence[Segment]
    owners: Ints
    slots: Ints
    stamps: NDArray[np.uint64]
    ranks: NDArray[np.uint64]

    def victims(self, chosen: Ints) -> deque[Victim]:
        """Some of them, in their order."""
        chosen = chosen[np.argsort(self.ranks[chosen], kind="stable")]
        return deque(
            Victim(self.segments[int(self.owners[at])], int(self.slots[at]), int(self.stamps[at]))
            for at in chosen.tolist()
        )

    @property
    def num_pins(self) -> int:
        """Slots that are read this moment."""
        return sum(len(one.pins) for one in self.segments)


class Room(NamedTuple):
    """What is looked for.

    Attributes:
        span: of ages, in bytes used.
        shares: whose is what.
        taker: who wants the room.
        of: only this tenant's may go; None for anybody's.
    """

    span: int
    shares: Shares
    taker: Whose
    of: Tenant | None = None

    @property
    def is_any(self) -> bool:
        """Whether everything may go."""
        return self.of is None and not self.shares.floors


def choose(segments: Sequence[Segment], room: Room) -> deque[Victim]:
    """Some of what goes first, in its order: all of it may go together.

    Args:
        segments: to look at.
        room: for whom.
    """
    found = _slots(segments, room.span)
    if not room.is_any:
        may_go = np.flatnonzero(_may_go(found, room))
        most = max(LEAST_VICTIMS, len(may_go) // VICTIMS_SHARE)
        chosen = _together(found, room, may_go, most)
        return found.victims(_first(found, chosen, most))
    # Those that are read this moment are among them and passed over: their number is small.
    count = len(found.slots)
    most = max(1, count // VICTIMS_SHARE) + found.num_pins
    return found.victims(_first(found, np.arange(count), most))


def may_all_go(segments: Sequence[Segment], room: Room) -> deque[Victim]:
    """All that may go together, in its order; as ``choose`` for the rest."""
    found = _slots(segments, room.span)
    may_go = np.flatnonzero(_may_go(found, room))
    return found.victims(_together(found, room, may_go, max(1, len(may_go))))


def oldest(segments: Sequence[Segment], room: Room) -> int | None:
    """The lowest stamp of anything that may go; None where nothing may."""
    found = _slots(segments, room.span)
    stamps = found.stamps if room.is_any else found.stamps[_may_go(found, room)]
    return int(stamps.min()) if len(stamps) else None


def _slots(segments: Sequence[Segment], span: int) -> Slots:
    slots = [np.flatnonzero(one.states == State.USED) for one in segments]
    stamps = [one.stamps[at] for one, at in zip(segments, slots, strict=True)]
    joined = np.concatenate([np.zeros(0, np.uint64), *stamps])
    return Slots(
        segments,
        np.repeat(np.arange(len(slots)), [len(one) for one in slots]),
        np.concatenate([np.zeros(0, np.int64), *slots]),
        joined,
        _ranks(joined, np.uint64(span)),
    )


def _groups(found: Slots) -> NDArray[np.uint32]:
    groups = np.zeros(len(found.slots), np.uint32)
    for number, segment in enumerate(found.segments):
        mine = found.owners == number
        groups[mine] = segment.groups[found.slots[mine]]
    return groups


def _sizes(found: Slots) -> Ints:
    return np.array([one.slot_bytes for one in found.segments], np.int64)[found.owners]


def _may_go(found: Slots, room: Room) -> NDArray[np.bool_]:
    """What may go by itself: nobody reads it, and its tenants have so much above their floors."""
    shares, of = room.shares, room.of
    groups = shares.members(of) if of is not None else np.ones(len(shares.whose), bool)
    smallest = min((one.slot_bytes for one in found.segments), default=0)
    for tenant in _guarded(room):
        if shares.spare_bytes(tenant) < smallest:
            groups &= ~shares.members(tenant)
    may_go = groups[_groups(found)]
    for number, segment in enumerate(found.segments):
        if segment.pins:
            pinned = np.fromiter(segment.pins, np.int64, len(segment.pins))
            may_go &= (found.owners != number) | ~np.isin(found.slots, pinned)
    return may_go


def _guarded(room: Room) -> list[Tenant]:
    return [one for one in room.shares.floors if one not in room.taker.tenants]


def _first(found: Slots, some: Ints, most: int) -> Ints:
    """Those that go first."""
    if len(some) <= most:
        return some
    return some[np.argpartition(found.ranks[some], most - 1)[:most]]


def _together(found: Slots, room: Room, may_go: Ints, most: int) -> Ints:
    """Of what may go by itself so much of what goes first that all may go together.

    Args:
        found: all slots.
        room: for whom.
        may_go: which of them.
        most: so many are enough.
    """
    groups, sizes, looked = _groups(found), _sizes(found), most
    while True:
        some = _first(found, may_go, looked)
        left = _within(found, room, some, groups, sizes)
        if len(left) >= most or len(some) == len(may_go):
            return left
        looked *= LOOK_MORE


def _within(found: Slots, room: Room, some: Ints, groups: NDArray[np.uint32], sizes: Ints) -> Ints:
    """Leaves out of each tenant what it would be below its floor without."""
    shares = room.shares
    for is_salt in (False, True):
        tenants = [one for one in _guarded(room) if one[0] is is_salt]
        numbers = np.full(len(shares.whose), -1, np.int64)
        for number, tenant in enumerate(tenants):
            numbers[shares.members(tenant)] = number
        whose = numbers[groups[some]]
        order = np.lexsort((found.ranks[some], whose))
        some, whose = some[order], whose[order]
        taken = np.cumsum(sizes[some])
        begins = np.searchsorted(whose, whose)
        before = np.concatenate([[0], taken])[begins]
        spare = np.array([*map(shares.spare_bytes, tenants), 0], np.int64)[whose]
        some = some[(whose < 0) | (taken - before <= spare)]
    return some


def _ranks(stamps: NDArray[np.uint64], span: np.uint64) -> NDArray[np.uint64]:
    """By span of age, inside one the latest first."""
    ranks: NDArray[np.uint64] = stamps // span * span + (span - np.uint64(1) - stamps % span)
    return ranks
