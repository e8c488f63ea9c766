"""Held pages are capped, each id is reported once, nothing is left over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adapter.geometry import Geometry, GroupGeometry
from adapter.ring import StagingRing
from adapter.saveledger import HOLD_S, MIN_HELD_PAGES, SaveLedger, saved_groups
from adapter.stagedrun import StagedRun
from protocol import limits
from protocol.ids import ShardIndex
from tests.adapter.hostlike import geometry


@pytest.mark.parametrize(("percent", "cap"), [(5, 50), (1, MIN_HELD_PAGES), (0, 0), (100, 1000)])
def test_cap_on_held_pages(percent: int, cap: int) -> None:
    ledger = SaveLedger(geometry(num_pages=1000), percent)
    assert ledger.max_held_pages == cap
    assert not ledger.hold(1, cap + 1)
    assert ledger.counts["saves_dropped_held_cap"] == 1
    if cap:
        assert ledger.hold(2, cap)
        assert not ledger.hold(3, 1)
        ledger.report(2)
        assert ledger.hold(3, 1)
        assert ledger.num_held_pages == 1


def test_groups_of_one_pool_see_each_others_pages_change_hands() -> None:
    """A page that leaves one group's table may come back in the other's."""
    geo = replace(geometry(num_pages=100, windows=(0, 9, 0)), pools=(0, 1, 0))
    ledger = SaveLedger(geo, 50)
    page = np.array([7], np.int32)
    named = [ticks.of(page) for ticks in ledger.ticks]
    ledger.ticks[2].raise_for(page)
    unchanged = [
        ticks.num_unchanged(page, seen) for ticks, seen in zip(ledger.ticks, named, strict=True)
    ]
    assert unchanged == [0, 1, 0]
    assert ledger.max_held_pages == 100  # half of two pools, not of three
    assert SaveLedger(replace(geo, pools=()), 50).max_held_pages == 150


def test_ids_are_reported_once() -> None:
    ledger = SaveLedger(geometry(num_pages=10), 5)
    ledger.report(4)
    assert ledger.take_saved() == [4]
    assert ledger.take_saved() == []


def test_an_id_used_again_belongs_to_the_newest_request() -> None:
    ledger = SaveLedger(geometry(num_pages=10), 5)
    old = ledger.open(1, 10, 0, b"")
    new = ledger.open(1, 11, 0, b"")
    assert old is not None
    assert ledger.find_request(1) is new
    ledger.remove(old)
    assert ledger.find_request(1) is new
    assert ledger.find(10) is None
    assert ledger.entries() == [new]


def test_number_of_entries_is_bounded() -> None:
    ledger = SaveLedger(geometry(num_pages=10), 5)
    for key in range(1, limits.MAX_LIVE_REQUESTS + 1):
        assert ledger.open(key, key, 0, b"") is not None
    assert ledger.open(0, 99999, 0, b"") is None
    assert ledger.counts["saves_dropped_crowded"] == 1


def test_note_and_tidy() -> None:
    ledger = SaveLedger(geometry(num_pages=10), 5)
    entry = ledger.open(1, 10, 0, b"")
    assert entry is not None
    ledger.note(entry)
    assert not ledger.has_work
    entry.add(b"k" * 16, np.zeros((1, 1), np.int32), np.zeros((1, 1), np.int64))
    entry.confirm(1, None)
    ledger.note(entry)
    assert ledger.busy() == [entry]
    entry.lanes[0].next_chunk = 1
    ledger.tidy(entry, 0.0)
    assert not ledger.has_work
    assert ledger.num_entries == 1
    entry.held_since_s = 0.0
    assert not ledger.is_overdue(entry, HOLD_S)
    assert ledger.is_overdue(entry, HOLD_S + 1)
    ledger.note(entry)
    assert ledger.take_saved() == [1]
    assert ledger.num_entries == 0


@pytest.mark.parametrize(
    ("shards", "rank", "expected"),
    [
        ((0, 2), 0, (0, 1)),
        ((1, 3), 1, (0, 1)),  # both split
        ((0, 2), 1, (1,)),  # the first one replicated: shard 0 is the leader's
        ((1, 2), 1, (0,)),  # the second one replicated
        ((0, 1), 1, ()),  # both: there is nothing to store here
    ],
)
def test_replicated_groups_are_the_leaders(
    shards: tuple[int, ...], rank: int, expected: tuple[int, ...]
) -> None:
    geo = Geometry(
        4,
        1,
        groups=(GroupGeometry(8, 64), GroupGeometry(8, 64)),
        shards=tuple(ShardIndex(shard) for shard in shards),
        rank=rank,
        num_ranks=2,
    )
    assert saved_groups(geo) == expected


def test_staged_chunks_go_with_their_request() -> None:
    geo = geometry(num_pages=8)
    ring = StagingRing(geo)
    ledger = SaveLedger(geo, 5, ring)
    entry = ledger.open(1, 10, 0, b"")
    assert entry is not None
    lane = entry.lanes[0]
    for first in range(3):
        lot = ring.take(0, 1)
        assert lot is not None
        lane.staged.append(StagedRun(10, first, 1, np.zeros(1, np.int32), lot, 1))
    ledger.drop_staged(lane, before_chunk=1)
    assert ring.num_lent == 2
    lane.staged[0].is_copying = True
    ledger.remove(entry)
    assert ring.num_lent == 1  # the one that is being written stays until the writer is done
