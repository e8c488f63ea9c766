"""Which values of a slab go first.

Purpose: those used longest ago, by spans of age, of those that quotas let go; some are chosen at a
time, since choosing looks at every slot. Must not know: names, files, the index. Runs in: the
porter; the catalog's lock guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from server.tiers.disk.segments import Segment, State
from server.tiers.disk.shares import Shares, Tenant, Whose

Number = TypeVar("Number", np.uint32, np.uint64)

VICTIMS_SHARE = 64
"""A 64th of the slots of one size is chosen at a time, so that choosing costs little for each."""


LEAST_VICTIMS = 64
"""Chosen at a time at least, where quotas let only some of the slots go."""


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


class Found(NamedTuple):
    """Slots that hold something and may go.

    Attributes:
        segments: that were looked at.
        owners: int64[n], which of them each slot is in.
        slots: int64[n].
        ranks: uint64[n], the smallest goes first.
        stamps: uint64[n].
    """

    segments: Sequence[Segment]
    owners: NDArray[np.int64]
    slots: NDArray[np.int64]
    ranks: NDArray[np.uint64]
    stamps: NDArray[np.uint64]


def find(
    segments: Sequence[Segment], span: int, shares: Shares, taker: Whose, of: Tenant | None = None
) -> Found:
    """Looks for all that may go.

    With floors it leaves out what is read this moment, and of each tenant all that it would be
    below its floor without: all of the rest may go together.

    Args:
        segments: to look at.
        span: of ages, in bytes used.
        shares: whose is what.
        taker: who wants the room.
        of: only this tenant's.
    """
    slots = [np.flatnonzero(one.states == State.USED) for one in segments]
    found = Found(
        segments,
        np.repeat(np.arange(len(slots)), [len(one) for one in slots]),
        np.concatenate([np.zeros(0, np.int64), *slots]),
        np.zeros(0, np.uint64),
        _joined([one.stamps[at] for one, at in zip(segments, slots, strict=True)], np.uint64),
    )
    found = found._replace(ranks=_ranks(found.stamps, np.uint64(span)))
    if not len(found.slots) or (of is None and not shares.floors):
        return found
    groups = _joined([one.groups[at] for one, at in zip(segments, slots, strict=True)], np.uint32)
    return _kept(found, _allowed(found, groups, shares, taker, of))


def choose(found: Found, least: int = 1) -> deque[Victim]:
    """The first of those that may go, in their order.

    Args:
        found: all of them.
        least: so many at least, if there are: where few of many slots may go, each choice looks at
            all of them.
    """
    if not len(found.slots):
        return deque()
    # Those that are read this moment are among them and passed over: their number is small.
    pinned = sum(len(one.pins) for one in found.segments)
    most = min(len(found.slots), max(least, len(found.slots) // VICTIMS_SHARE) + pinned)
    first = np.argpartition(found.ranks, most - 1)[:most]
    first = first[np.argsort(found.ranks[first])]
    return deque(
        Victim(found.segments[int(found.owners[at])], int(found.slots[at]), int(found.stamps[at]))
        for at in first.tolist()
    )


def _kept(found: Found, keep: NDArray[np.bool_]) -> Found:
    return Found(
        found.segments,
        found.owners[keep],
        found.slots[keep],
        found.ranks[keep],
        found.stamps[keep],
    )


def _allowed(
    found: Found, groups: NDArray[np.uint32], shares: Shares, taker: Whose, of: Tenant | None
) -> NDArray[np.bool_]:
    allowed = np.ones(len(groups), bool) if of is None else shares.members(of)[groups]
    for number, segment in enumerate(found.segments):
        if segment.pins:
            pinned = np.fromiter(segment.pins, np.int64, len(segment.pins))
            allowed &= (found.owners != number) | ~np.isin(found.slots, pinned)
    sizes = np.array([one.slot_bytes for one in found.segments], np.int64)[found.owners]
    guarded = [one for one in shares.floors if one not in taker.tenants]
    # Those who can lose nothing come first: what is left of others is then really theirs to lose.
    for tenant in sorted(guarded, key=lambda one: shares.spare_bytes(one) > 0):
        spare = shares.spare_bytes(tenant)
        if shares.bytes_of.get(tenant, 0) == 0:
            continue
        mine = np.flatnonzero(shares.members(tenant)[groups] & allowed)
        if spare <= 0:
            allowed[mine] = False
        elif len(mine) and spare < int(sizes[mine].sum()):
            mine = mine[np.argsort(found.ranks[mine], kind="stable")]
            allowed[mine[np.cumsum(sizes[mine]) > spare]] = False
    return allowed


def _ranks(stamps: NDArray[np.uint64], span: np.uint64) -> NDArray[np.uint64]:
    """By span of age, inside one the latest first."""
    ranks: NDArray[np.uint64] = stamps // span * span + (span - np.uint64(1) - stamps % span)
    return ranks


def _joined(parts: list[NDArray[Number]], kind: type[Number]) -> NDArray[Number]:
    return np.concatenate([np.zeros(0, kind), *parts])
