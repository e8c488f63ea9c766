"""A copy is published only when its pages are known to have been right all the time (P04, B09)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapter.geometry import Geometry
from adapter.metadata import ConnectorMetadata, LastWord, SaveNames
from adapter.ring import StagingRing
from adapter.savebook import SaveBook
from adapter.saveflow import MAX_COPYING, MAX_UNSETTLED, PROOF_S, SaveFlow
from adapter.savelane import DEFER_FIRST_S, MAX_DEFERRALS, SaveLane
from adapter.saveledger import HOLD_S, SaveLedger
from protocol.messages import StopReason
from tests.adapter.hostlike import FakeMark, geometry
from tests.adapter.savehost import SaveHost, small_ring

OK = StopReason.NONE
ALL = 1 << 30


class Rig:
    """A ledger with one-line reports."""

    def __init__(self, geo: Geometry | None = None, ring: StagingRing | None = None) -> None:
        self.ledger = SaveLedger(geo or geometry(num_pages=256), 50, ring)
        self.book, self.flow = SaveBook(self.ledger), SaveFlow(self.ledger)

    def name(self, key: int, first: int, *pages: list[int], request_id: int = 0) -> SaveNames:
        """Chunks of one page; a list of pages for each layer group."""
        keys = b"".join(bytes([key, first + at]) * 8 for at in range(len(pages[0])))
        rows = np.array(pages, dtype=np.int32)
        return SaveNames(request_id or 100 + key, key, first, b"", keys, rows)

    def bind(
        self,
        *names: SaveNames,
        alive: dict[int, int] | None = None,
        new: tuple[int, ...] = (),
        ended: tuple[int, ...] = (),
        mark: FakeMark | None = None,
        at: int = 0,
    ) -> None:
        """Reports; ``at`` is the position that every request named alive computes next."""
        alive = alive or {}
        metadata = ConnectorMetadata(
            1,
            new_pages=(np.array(new, dtype=np.int32),) if new else (),
            alive=np.array(list(alive), dtype=np.int64),
            valid_chunks=np.array(list(alive.values()), dtype=np.int32),
            next_tokens=np.full(len(alive), at, dtype=np.int64),
            names=names,
            ended=np.array(ended, dtype=np.int64),
        )
        self.book.bound(metadata, mark)

    def hold(self, key: int, num_pages: int, valid: int = ALL) -> bool:
        return self.book.hold(key, 100 + key, num_pages, LastWord(valid))

    def outstanding(self, key: int) -> bool:
        entry = self.ledger.find(key)
        return entry is not None and not entry.ended and entry.is_outstanding(entry.named)

    def lane(self, key: int, group: int = 0) -> SaveLane:
        entry = self.ledger.find(key)
        lane = None if entry is None else entry.lane(group)
        assert lane is not None
        return lane

    def copying(self, pages: tuple[int, ...] = (1, 2)) -> None:
        """Request 7 named, confirmed and sent as STORE 70."""
        self.bind(self.name(7, 0, list(pages)), alive={7: 0})
        self.bind(alive={7: len(pages)})
        (order,) = self.flow.next_stores(100)
        assert order.num_chunks == len(pages)
        self.flow.sent(7, 0, 70)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@example(seed=3, chunk=1, windows=(12,), staging="none")  # ended right after a part of its prompt
@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    chunk=st.integers(1, 2),
    windows=st.sampled_from([(0,), (0, 9), (13, 0), (12,), (0, 0)]),
    staging=st.sampled_from(["none", "ring", "layers"]),
)
def test_nothing_wrong_is_ever_published(
    seed: int, chunk: int, windows: tuple[int, ...], staging: str
) -> None:
    ring_chunks = 0 if staging == "none" else 2 + seed % 4
    host = SaveHost(seed, chunk, 24, windows, ring_chunks, by_layer=staging == "layers")
    for _ in range(150):
        host.step()
    host.finish_all()


@pytest.mark.parametrize("windows", [(0,), (0, 17), (17,)])
@pytest.mark.parametrize("staging", ["none", "ring", "layers"])
def test_the_miniature_host_does_publish(windows: tuple[int, ...], staging: str) -> None:
    ring_chunks = 0 if staging == "none" else 8
    counts: dict[str, int] = {}
    published = 0
    for seed in range(10):
        host = SaveHost(seed, 1, 24, windows, ring_chunks, by_layer=staging == "layers")
        for _ in range(300):
            host.step()
        published += host.server.num_published
        for name, count in host.ledger.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert published > 30, counts
    assert (counts.get("chunks_staged_by_layer", 0) > 10) == (staging == "layers")


def test_copied_waits_for_a_later_sign_of_life(rig: Rig) -> None:
    rig.copying()
    rig.flow.copied(7, 0, 0, 2, OK, 0.0)
    assert rig.flow.next_settlements(0.0) == []
    rig.bind(alive={8: 0})
    assert rig.flow.next_settlements(0.0) == []
    rig.bind(alive={7: 2})
    (commit,) = rig.flow.next_settlements(0.0)
    assert (commit.store, commit.count) == (70, 2)
    rig.flow.settled(7, 0, 2, OK, 0.0)
    assert rig.ledger.counts["chunks_saved"] == 2
    assert not rig.ledger.has_work


def test_a_sign_of_life_during_the_copy_is_not_enough(rig: Rig) -> None:
    rig.copying()
    rig.bind(alive={7: 2})
    rig.flow.copied(7, 0, 0, 2, OK, 0.0)
    assert rig.flow.next_settlements(0.0) == []


def test_an_end_withdraws_even_what_was_proven(rig: Rig) -> None:
    rig.copying()
    rig.flow.copied(7, 0, 0, 2, OK, 0.0)
    rig.bind(alive={7: 2})
    rig.bind(ended=(7,))  # as for all, where a load failed: what was computed on it is suspect
    (cancel,) = rig.flow.next_settlements(0.0)
    assert (cancel.store, cancel.count) == (70, 0)


def test_held_pages_are_committed_at_once(rig: Rig) -> None:
    rig.copying()
    assert rig.hold(7, 2)
    rig.book.finished([107], None, 0.0)
    rig.flow.copied(7, 0, 0, 2, OK, 0.0)
    (commit,) = rig.flow.next_settlements(0.0)
    assert commit.count == 2
    rig.flow.settled(7, 0, 2, OK, 0.0)
    assert rig.ledger.take_saved() == [107]
    assert rig.ledger.num_held_pages == 0


def test_pages_handed_out_meanwhile_are_withdrawn(rig: Rig) -> None:  # P04
    rig.copying()
    rig.bind(new=(2,), alive={7: 2})
    rig.flow.copied(7, 0, 0, 2, OK, 0.0)
    rig.bind(alive={7: 2})
    (commit,) = rig.flow.next_settlements(0.0)
    assert commit.count == 1
    rig.flow.settled(7, 0, 1, OK, 0.0)
    rig = Rig()
    rig.copying()
    rig.bind(new=(1,), alive={7: 2})
    rig.flow.copied(7, 0, 0, 2, OK, 0.0)
    (cancel,) = rig.flow.next_settlements(0.0)
    assert cancel.count == 0


def test_an_ended_request_is_withdrawn(rig: Rig) -> None:
    rig.copying()
    rig.bind(ended=(7,))
    rig.flow.copied(7, 0, 0, 2, OK, 0.0)
    (cancel,) = rig.flow.next_settlements(0.0)
    assert cancel.count == 0
    rig.flow.settled(7, 0, 0, OK, 0.0)
    assert rig.ledger.num_entries == 0


def test_a_copy_without_a_sign_of_life_is_withdrawn_in_time(rig: Rig) -> None:
    rig.copying()
    rig.flow.copied(7, 0, 0, 2, OK, 0.0)
    assert rig.flow.next_settlements(PROOF_S) == []
    assert rig.flow.next_settlements(PROOF_S + 1)[0].count == 0


def test_what_the_server_holds_is_skipped_and_the_next_part_names_its_parent(rig: Rig) -> None:
    rig.copying((1, 2, 3))
    rig.flow.copied(7, 0, 3, 0, OK, 0.0)
    assert not rig.ledger.has_work
    rig.bind(rig.name(7, 3, [4]), alive={7: 3})
    rig.bind(alive={7: 4})
    (order,) = rig.flow.next_stores(100)
    assert (order.first_chunk, order.num_chunks) == (3, 1)
    assert order.parent == bytes([7, 2]) * 8


def test_a_chunk_that_another_store_has_reserved_is_tried_again_soon(rig: Rig) -> None:
    rig.copying()
    now_s = 0.0
    for number in range(MAX_DEFERRALS):
        rig.flow.copied(7, 0, 0, 0, StopReason.BUSY, now_s)
        assert rig.outstanding(7)
        wait_s = DEFER_FIRST_S * 2**number
        rig.flow.expire(now_s + 0.9 * wait_s)
        assert rig.flow.next_stores(100) == []
        now_s += wait_s
        rig.flow.expire(now_s)
        (order,) = rig.flow.next_stores(100)
        assert (order.first_chunk, order.num_chunks) == (0, 2)
    rig.flow.copied(7, 0, 0, 0, StopReason.BUSY, now_s)
    assert not rig.outstanding(7)
    assert rig.ledger.counts["saves_stopped_busy"] == 1


@pytest.mark.parametrize("stop", [StopReason.NO_ROOM, StopReason.MISSING_PARENT])
def test_a_stopped_save_is_dropped_and_tried_again_only_with_more(
    rig: Rig, stop: StopReason
) -> None:
    rig.copying()
    rig.flow.copied(7, 0, 0, 0, stop, 0.0)
    assert rig.flow.next_stores(100) == []
    assert not rig.outstanding(7)
    rig.bind(rig.name(7, 2, [3]), alive={7: 2})
    assert rig.outstanding(7)
    rig.bind(alive={7: 3})
    (order,) = rig.flow.next_stores(100)
    assert (order.first_chunk, order.num_chunks) == (0, 3)  # the hole heals
    for _ in range(2):
        rig.flow.copied(7, 0, 0, 0, stop, 0.0)
        rig.bind(rig.name(7, rig.ledger.entries()[0].named, [9]), alive={7: 9})
        rig.bind(alive={7: 99})
        rig.flow.next_stores(100)
    assert rig.ledger.counts[f"saves_stopped_{stop.name.lower()}"] == 3
    assert not rig.outstanding(7)


def test_a_refused_request_drops_its_save(rig: Rig) -> None:
    rig.copying()
    assert rig.hold(7, 2)
    rig.book.finished([107], None, 0.0)
    rig.flow.failed(7, 0, 0.0)
    assert rig.ledger.take_saved() == [107]


def test_a_lost_server_gives_held_pages_back_and_the_living_begin_anew(rig: Rig) -> None:
    rig.copying()
    rig.bind(rig.name(8, 0, [10, 11], request_id=108), alive={7: 2, 8: 0})
    rig.bind(alive={7: 2, 8: 2})
    rig.flow.next_stores(100)
    rig.flow.sent(8, 0, 80)
    assert rig.hold(8, 2)
    rig.book.finished([108], None, 0.0)
    assert sorted(rig.flow.server_lost(0.0)) == [70, 80]
    assert rig.ledger.take_saved() == [108]
    rig.bind(rig.name(7, 2, [3]), alive={7: 2})
    rig.bind(alive={7: 3})
    (order,) = rig.flow.next_stores(100)
    assert (order.key, order.first_chunk, order.num_chunks) == (7, 0, 3)


def test_without_a_server_nothing_is_held(rig: Rig) -> None:
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})
    rig.bind(alive={7: 1})
    assert rig.hold(7, 1)
    rig.book.finished([107], None, 0.0)
    rig.flow.give_up_held()
    assert rig.ledger.take_saved() == [107]


def test_holding_ends_in_time_even_if_the_stream_never_passes(rig: Rig) -> None:
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})
    assert rig.hold(7, 1)
    rig.book.finished([107], FakeMark(is_done=False), 0.0)
    assert rig.flow.next_stores(100) == []
    rig.flow.expire(HOLD_S)
    assert rig.ledger.take_saved() == []
    rig.flow.expire(HOLD_S + 1)
    assert rig.ledger.take_saved() == [107]


def test_a_failed_stream_confirms_nothing(rig: Rig) -> None:
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})
    assert rig.hold(7, 1)
    rig.book.finished([107], FakeMark(error=RuntimeError("illegal access")), 0.0)
    assert rig.flow.next_stores(100) == []
    assert rig.ledger.take_saved() == [107]


def test_bounds_of_what_is_in_flight(rig: Rig) -> None:
    for key in range(1, 100):
        rig.bind(rig.name(key, 0, [key]), alive={key: 0})
        rig.bind(alive={key: 1})
    sent = 0
    while True:
        orders = rig.flow.next_stores(100)
        assert len(orders) <= MAX_COPYING
        if not orders:
            break
        for order in orders:
            rig.flow.copied(order.key, 0, 0, 1, OK, 0.0)
        sent += len(orders)
    assert sent == MAX_UNSETTLED


def test_answers_about_forgotten_requests_are_ignored(rig: Rig) -> None:
    rig.copying()
    rig.book.abandon()
    rig.flow.copied(7, 0, 0, 2, OK, 0.0)
    rig.flow.settled(7, 0, 2, OK, 0.0)
    rig.flow.failed(7, 0, 0.0)
    rig.flow.sent(7, 0, 71)
    assert not rig.ledger.has_work


def test_a_server_that_claims_more_than_it_was_sent_moves_nothing_further(rig: Rig) -> None:
    rig.copying()
    rig.flow.copied(7, 0, 1, 9, OK, 0.0)
    rig.bind(alive={7: 2})
    (commit,) = rig.flow.next_settlements(0.0)
    assert commit.count == 1
    rig.flow.settled(7, 0, 9, OK, 0.0)
    assert rig.lane(7).next_chunk == 2
    rig.bind(rig.name(7, 2, [3]), alive={7: 3})
    assert len(rig.flow.next_stores(9)) == 1
    rig.flow.copied(7, 0, 9, 9, OK, 0.0)
    assert (rig.lane(7).next_chunk, rig.lane(7).copied) == (3, 0)


def test_a_long_save_goes_in_parts(rig: Rig) -> None:
    rig.bind(rig.name(7, 0, [1, 2, 3]), alive={7: 0})
    rig.bind(alive={7: 3})
    (order,) = rig.flow.next_stores(2)
    assert order.num_chunks == 2
    assert rig.flow.next_stores(2) == []  # one at a time: its parent must be held first


def window_rig(at: int = 24) -> Rig:
    """A window of three blocks, one block a chunk; six chunks named, the last three have pages."""
    rig = Rig(geometry(num_pages=64, windows=(12,)))
    rig.bind(rig.name(7, 0, [-1, -1, -1, 3, 4, 5]), alive={7: 5}, at=20)
    rig.bind(alive={7: 6}, at=at)
    return rig


@pytest.mark.parametrize(("at", "first"), [(24, 3), (26, 3), (27, 4), (31, 5), (35, 6)])
def test_chunks_without_pages_are_left_out(at: int, first: int) -> None:
    rig = window_rig(at)
    orders = rig.flow.next_stores(9)
    assert [(order.first_chunk, order.num_chunks) for order in orders] == (
        [(first, 6 - first)] if first < 6 else []
    )
    assert rig.ledger.has_work == bool(orders)  # what has left the window is not waited for
    if orders:
        assert orders[0].parent == bytes([7, first - 1]) * 8
        assert np.frombuffer(orders[0].pages, dtype="<i4").tolist() == [3, 4, 5][first - 3 :]


def test_what_left_the_window_while_it_was_copied_is_withdrawn_and_the_rest_goes_on() -> None:
    rig = window_rig()
    rig.flow.next_stores(9)
    rig.flow.sent(7, 0, 70)
    rig.flow.copied(7, 0, 0, 3, OK, 0.0)
    rig.bind(rig.name(7, 6, [6]), new=(3,), alive={7: 6}, at=27)
    (cancel,) = rig.flow.next_settlements(0.0)
    assert (cancel.store, cancel.count) == (70, 0)
    rig.flow.settled(7, 0, 0, OK, 0.0)
    (order,) = rig.flow.next_stores(9)
    assert (order.first_chunk, order.num_chunks) == (4, 2)


def test_the_first_report_after_the_copy_is_the_proof() -> None:
    rig = window_rig()
    rig.flow.next_stores(9)
    rig.flow.copied(7, 0, 0, 3, OK, 0.0)
    rig.bind(alive={7: 6}, at=25)
    # Long out of the window by now and handed out, but copied while it was not.
    rig.bind(new=(3, 4, 5), alive={7: 60}, at=240)
    (commit,) = rig.flow.next_settlements(0.0)
    assert commit.count == 3


def test_a_page_handed_out_before_the_proof_is_no_windows_doing() -> None:
    rig = window_rig()
    rig.flow.next_stores(9)
    rig.flow.copied(7, 0, 0, 3, OK, 0.0)
    rig.bind(new=(4,), alive={7: 6}, at=25)
    (commit,) = rig.flow.next_settlements(0.0)
    assert commit.count == 1
    rig.flow.settled(7, 0, 1, OK, 0.0)
    assert rig.flow.next_stores(9) == []  # it stalls, and does not try for ever


@pytest.mark.parametrize(("told", "count"), [(True, 3), (False, 0)])
def test_the_pages_of_a_requests_end_say_what_is_there(told: bool, count: int) -> None:
    rig = window_rig(at=24)
    rig.flow.next_stores(9)
    rig.flow.sent(7, 0, 70)
    pages = ([-1, -1, -1, 3, 4, 5, 6],) if told else ()
    assert rig.book.hold(7, 107, 4, LastWord(6, pages=pages))
    rig.book.finished([107], None, 0.0)
    rig.flow.copied(7, 0, 0, 3, OK, 0.0)
    (settlement,) = rig.flow.next_settlements(0.0)
    assert settlement.count == count  # else the request may be some tokens further than reported


def test_what_is_gone_at_a_requests_end_is_withdrawn() -> None:
    rig = window_rig(at=24)
    rig.flow.next_stores(9)
    rig.flow.copied(7, 0, 0, 3, OK, 0.0)
    assert rig.book.hold(7, 107, 2, LastWord(6, pages=([-1, -1, -1, -1, 4, 5],)))
    rig.book.finished([107], None, 0.0)
    (cancel,) = rig.flow.next_settlements(0.0)
    assert cancel.count == 0
    rig.flow.settled(7, 0, 0, OK, 0.0)
    (order,) = rig.flow.next_stores(9)
    assert (order.first_chunk, order.num_chunks) == (4, 2)


def test_a_full_ring_makes_saves_wait() -> None:
    geo = geometry(num_pages=64)
    ring = small_ring(geo, 2)
    rig = Rig(geo, ring)
    for key in (7, 8):
        rig.bind(rig.name(key, 0, [1, 2, 3]), alive={key: 3})
    (order,) = rig.flow.next_stores(9)
    assert order.num_chunks == 2
    assert order.lot is not None
    assert order.sources is not None
    assert order.sources.tolist() == [1, 2]
    assert order.pages == order.lot.slots.tobytes()
    assert rig.flow.next_stores(9) == []
    assert rig.ledger.has_work
    ring.give_back(order.lot)
    rig.flow.copied(7, 0, 2, 0, OK, 0.0)
    assert sum(order.num_chunks for order in rig.flow.next_stores(9)) == 2
