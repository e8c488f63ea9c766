"""What the engine reports: names in order, confirmations, finished requests, nonsense."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adapter.metadata import LastWord
from protocol.ids import ShardIndex
from protocol.messages import StopReason
from tests.adapter.hostlike import FakeMark, geometry
from tests.adapter.test_saveflow import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_names_alone_send_nothing(rig: Rig) -> None:
    rig.bind(rig.name(7, 0, [1, 2]), alive={7: 0})
    assert rig.flow.next_stores(9) == []
    assert rig.outstanding(7)
    assert not rig.outstanding(8)


def test_only_what_was_computed_before_is_sent(rig: Rig) -> None:
    rig.bind(rig.name(7, 0, [1, 2, 3]), alive={7: 1})
    (order,) = rig.flow.next_stores(9)
    assert order.num_chunks == 1


def test_confirmed_chunks_wait_for_the_stream(rig: Rig) -> None:
    mark = FakeMark(is_done=False)
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})
    rig.bind(alive={7: 1}, mark=mark)
    assert rig.flow.next_stores(9) == []
    mark.is_done = True
    assert len(rig.flow.next_stores(9)) == 1


def test_a_save_says_whose_quota_it_is(rig: Rig) -> None:
    rig.bind(replace(rig.name(7, 0, [1]), tenant=b"t" * 16), alive={7: 1})
    (order,) = rig.flow.next_stores(9)
    assert order.tenant == b"t" * 16


def test_a_living_request_is_saved_anew_on_the_next_server(rig: Rig) -> None:
    rig.copying()
    rig.flow.copied(7, 0, 2, 0, StopReason.NONE, 0.0)
    assert not rig.ledger.has_work
    assert rig.flow.server_lost(0.0) == []
    (order,) = rig.flow.next_stores(9)  # without another word of the engine's
    assert (order.first_chunk, order.num_chunks) == (0, 2)


def test_a_gap_in_the_names_is_dropped(rig: Rig) -> None:
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})
    rig.bind(rig.name(7, 2, [3]), alive={7: 3})
    assert rig.ledger.counts["saves_dropped_gap"] == 1
    (order,) = rig.flow.next_stores(9)
    assert order.num_chunks == 1


def test_finished_without_saves_is_reported_at_once(rig: Rig) -> None:
    rig.book.finished([5], None, 0.0)
    assert rig.ledger.take_saved() == [5]


def test_a_repeated_announcement_is_not_reported_twice(rig: Rig) -> None:  # P19
    rig.copying()
    rig.book.finished([107], None, 1.0)
    rig.book.finished([107], None, 2.0)
    entry = rig.ledger.find(7)
    assert entry is not None
    assert entry.held_since_s == 1.0  # from then on the pages are held for so long at most
    rig.flow.copied(7, 0, 2, 0, StopReason.NONE, 2.0)
    assert rig.ledger.take_saved() == [107]


def test_ended_before_anything_was_sent(rig: Rig) -> None:
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})
    rig.bind(ended=(7,))
    assert rig.ledger.num_entries == 0
    rig.bind(ended=(7, 8))


def test_pages_outside_the_pool_are_nonsense(rig: Rig) -> None:
    with pytest.raises(IndexError):
        rig.bind(new=(256,))


def test_abandon_gives_held_pages_back(rig: Rig) -> None:
    rig.copying()
    assert rig.hold(7, 2)
    rig.book.finished([107], None, 0.0)
    rig.book.abandon()
    assert rig.ledger.take_saved() == [107]
    assert rig.ledger.num_held_pages == 0


def test_what_a_failed_forward_left_is_not_saved_with_a_finished_request(rig: Rig) -> None:
    # Early hosts call request_finished for requests whose forward raised (host contract §6).
    rig.bind(rig.name(7, 0, [1, 2]), alive={7: 1})  # chunk 1 is this forward's, and it raises
    assert rig.hold(7, 2, valid=1)
    rig.book.finished([107], FakeMark(), 0.0)
    (order,) = rig.flow.next_stores(9)
    assert order.num_chunks == 1
    rig.flow.copied(7, 0, 1, 0, StopReason.NONE, 0.0)
    assert rig.ledger.take_saved() == [107]


def test_nothing_is_held_for_what_was_not_computed(rig: Rig) -> None:
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})
    assert not rig.hold(7, 1, valid=0)
    assert rig.ledger.num_held_pages == 0


def test_the_last_word_may_name_what_no_report_did(rig: Rig) -> None:
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})
    last = LastWord(2, rig.name(7, 1, [2]))
    assert rig.book.hold(7, 107, 2, last)
    rig.book.finished([107], None, 0.0)
    (order,) = rig.flow.next_stores(9)
    assert order.num_chunks == 2
    assert order.pages == np.array([1, 2], dtype="<i4").tobytes()


def follower() -> Rig:
    return Rig(geometry(num_pages=256, rank=1, num_ranks=2))


def test_another_rank_confirms_what_was_launched_when_the_end_is_announced() -> None:
    rig = follower()
    rig.bind(rig.name(7, 0, [1, 2]), alive={7: 0})
    rig.book.launched()
    rig.bind(rig.name(7, 2, [3]), alive={7: 2})  # this forward fails here, or is skipped
    rig.book.finished([107], None, 0.0)
    rig.book.finished([107], None, 0.0)
    (order,) = rig.flow.next_stores(9)
    assert order.num_chunks == 2
    rig.flow.copied(7, 0, 2, 0, StopReason.NONE, 0.0)
    assert rig.ledger.take_saved() == [107]


def test_another_rank_confirms_nothing_of_a_forward_that_was_not_launched_there() -> None:
    rig, before = follower(), FakeMark()  # a mark of some forward before
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})
    rig.book.launched()
    rig.bind(rig.name(7, 1, [2]), alive={7: 1}, mark=before)  # raises on this rank alone
    rig.bind(alive={7: 2}, mark=before)  # the leader went on
    (order,) = rig.flow.next_stores(9)
    assert order.num_chunks == 1
    rig.flow.copied(7, 0, 1, 0, StopReason.NONE, 0.0)
    rig.bind(alive={7: 2}, mark=before)
    assert rig.flow.next_stores(9) == []


def test_another_rank_reports_at_once_what_it_has_nothing_to_save_of() -> None:
    rig = follower()
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})  # never launched
    rig.book.finished([107, 108], None, 0.0)
    assert sorted(rig.ledger.take_saved()) == [107, 108]
    assert rig.ledger.num_entries == 0


def test_the_leader_holds_while_other_ranks_may_not_be_done(rig: Rig) -> None:
    rig.copying()
    rig.flow.copied(7, 0, 2, 0, StopReason.NONE, 0.0)
    assert not rig.hold(7, 2)
    assert rig.book.hold(7, 107, 2, LastWord(2), has_peers=True)
    rig.book.finished([107], None, 0.0)
    assert rig.ledger.take_saved() == [107]
    rig.bind(rig.name(8, 0, [5]), alive={8: 0})
    assert not rig.book.hold(8, 108, 1, LastWord(0), has_peers=True)


def test_replicated_groups_are_nobodys_business_on_another_rank() -> None:
    geo = geometry(num_pages=256, rank=1, num_ranks=2)
    rig = Rig(replace(geo, shards=(ShardIndex(0),)))
    rig.bind(rig.name(7, 0, [1]), alive={7: 1})
    assert rig.ledger.num_entries == 0
    rig.book.finished([107], None, 0.0)
    assert rig.ledger.take_saved() == [107]


def test_an_id_is_reported_when_all_layer_groups_are_settled() -> None:
    rig = Rig(geometry(num_pages=256, windows=(0, 0)))
    rig.bind(rig.name(7, 0, [1], [2]), alive={7: 0})
    assert rig.hold(7, 2)
    rig.book.finished([107], None, 0.0)
    first, second = rig.flow.next_stores(9)
    assert (first.group, second.group) == (0, 1)
    rig.flow.copied(7, 1, 1, 0, StopReason.NONE, 0.0)
    assert rig.ledger.take_saved() == []
    rig.flow.copied(7, 0, 1, 0, StopReason.NONE, 0.0)
    assert rig.ledger.take_saved() == [107]


def test_a_skipped_forward_is_made_up_for_by_the_requests_next_one() -> None:
    rig = follower()
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})  # skipped
    rig.bind(alive={8: 0})
    rig.book.launched()  # of another request
    entry = rig.ledger.find(7)
    assert entry is not None
    assert entry.launched == 0
    rig.bind(alive={7: 0})
    rig.book.launched()
    rig.book.finished([107], None, 0.0)
    (order,) = rig.flow.next_stores(9)
    assert order.num_chunks == 1


def test_the_end_of_a_request_whose_forward_was_skipped_here_confirms_nothing() -> None:
    rig = follower()
    rig.bind(rig.name(7, 0, [1]), alive={7: 0})  # skipped
    rig.bind(alive={8: 0})
    rig.book.launched()
    rig.book.finished([107], None, 0.0)
    assert rig.flow.next_stores(9) == []
    assert rig.ledger.take_saved() == [107]


def test_no_more_is_held_than_may_be() -> None:
    rig = Rig(geometry(num_pages=16))
    for key in (7, 8):
        rig.bind(rig.name(key, 0, [key]), alive={key: 0})
    assert rig.hold(7, 10)
    assert not rig.hold(8, 10)
    assert rig.ledger.num_held_pages == 10


def test_what_ended_while_it_is_copied_is_not_held(rig: Rig) -> None:
    rig.copying()
    rig.book.ended(7)
    assert not rig.hold(7, 2)
    assert rig.ledger.num_held_pages == 0
