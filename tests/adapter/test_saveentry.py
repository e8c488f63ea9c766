"""One request's chunks: confirmed in order, sent after the stream has passed, given up in time."""

from __future__ import annotations

import numpy as np
import pytest

from adapter.saveentry import LostMark, SaveEntry, mark_of
from adapter.savelane import Reach, SaveLane, Stage
from adapter.ticks import PageTicks
from tests.adapter.hostlike import FakeMark


def entry(named: int = 4, first: int = 0, windows: tuple[int, ...] = (0,)) -> SaveEntry:
    """Chunk n is one block of 4 tokens and has page 10 + n in each group."""
    reaches = [Reach(window, 4, 1) if window else None for window in windows]
    lanes = [SaveLane(group, first, reach) for group, reach in enumerate(reaches)]
    made = SaveEntry(1, 2, first, b"p" * 16 if first else b"", lanes, 1)
    add(made, [list(range(10, 10 + named))] * len(windows))
    return made


def add(made: SaveEntry, pages: list[list[int]]) -> None:
    rows = np.array(pages, dtype=np.int32)
    keys = b"".join(bytes([(made.named + n) % 256]) * 16 for n in range(rows.shape[1]))
    made.add(keys, rows, rows.astype(np.int64))


def ready(made: SaveEntry, lane: int = 0) -> int:
    return made.num_ahead(made.lanes[lane], made.passed)


def test_only_named_chunks_are_confirmed() -> None:
    one = entry(2)
    one.confirm(9, None)
    assert (one.confirmed, one.passed, ready(one)) == (2, 2, 2)
    one.confirm(1, None)
    assert one.confirmed == 2


def test_gates_are_passed_in_order() -> None:
    one, marks = entry(3), [FakeMark(False) for _ in range(3)]
    for upto, mark in enumerate(marks, start=1):
        one.confirm(upto, mark)
    one.pass_gates()
    assert (one.num_ahead(one.lanes[0], one.confirmed), ready(one), one.num_gates) == (3, 0, 3)
    marks[1].is_done = True
    one.pass_gates()
    assert ready(one) == 0
    marks[0].is_done = True
    one.pass_gates()
    assert (ready(one), one.num_gates) == (2, 1)


def test_where_nothing_runs_nothing_is_waited_for() -> None:
    one = entry(2)
    one.confirm(1, FakeMark(False))
    one.confirm(2, None)
    assert (one.passed, one.num_gates) == (2, 0)


def test_many_gates_collapse_onto_the_last() -> None:
    one, marks = entry(40), [FakeMark(False) for _ in range(40)]
    for upto, mark in enumerate(marks, start=1):
        one.confirm(upto, mark)
    assert one.num_gates <= 8
    for mark in marks[:-1]:
        mark.is_done = True
    one.pass_gates()
    assert ready(one) <= 8
    marks[-1].is_done = True
    one.pass_gates()
    assert ready(one) == 40


def test_a_failed_mark_ends_the_entry() -> None:
    one = entry()
    one.confirm(1, FakeMark(error=RuntimeError("gone")))
    one.pass_gates()
    assert one.ended


def test_parts_and_parents() -> None:
    one = entry(4, first=3)
    keys, parent = one.keys_of(3, 2)
    assert parent == b"p" * 16
    assert keys == bytes([3]) * 16 + bytes([4]) * 16
    assert one.pages_and_ticks(0, 3, 2)[0].tolist() == [10, 11]
    assert one.keys_of(5, 2)[1] == bytes([4]) * 16
    assert one.pages_and_ticks(0, 6, 1)[0].tolist() == [13]


def test_many_additions_keep_all_pages() -> None:
    one = entry(0, windows=(0, 2))
    for chunk in range(300):
        add(one, [[chunk], [1000 + chunk]])
    assert one.pages_and_ticks(0, 0, 300)[0].tolist() == list(range(300))
    pages, ticks = one.pages_and_ticks(1, 120, 2)
    assert pages.tolist() == ticks.tolist() == [1120, 1121]


@pytest.mark.parametrize(
    ("next_chunk", "stage", "expected"),
    [(0, Stage.IDLE, True), (1, Stage.IDLE, False), (1, Stage.COPYING, True)],
)
def test_outstanding(next_chunk: int, stage: Stage, expected: bool) -> None:
    one = entry(1)
    one.confirm(1, None)
    one.lanes[0].next_chunk, one.lanes[0].stage = next_chunk, stage
    assert one.is_outstanding(one.named) == expected
    assert one.is_outstanding(0) == (stage is not Stage.IDLE)


def test_a_lost_mark_confirms_nothing() -> None:
    one = entry()
    one.confirm(4, LostMark(RuntimeError("no event")))
    one.pass_gates()
    assert one.ended
    assert ready(one) == 0


def test_a_windows_chunks_follow_those_of_full_attention() -> None:
    one = entry(4, windows=(40, 0))
    full, window = one.lanes
    assert (full.group, window.group) == (1, 0)
    one.confirm(4, None)
    assert one.num_ahead(window, 4) == 4  # the first chunk has no parent
    window.next_chunk = 2
    assert one.num_ahead(window, 4) == 0
    full.stage, full.copied = Stage.COPIED, 2  # so the server knows the parent
    assert one.num_ahead(window, 4) == 2
    full.next_chunk, full.stage, full.copied = 3, Stage.IDLE, 0
    assert one.num_ahead(window, 4) == 2
    full.stall(one.confirmed)
    assert one.num_ahead(window, 4) == 1  # nothing can be found behind what is given up
    assert one.lane(0) is window
    assert one.lane(7) is None


def test_what_a_window_has_left_or_never_had_is_skipped() -> None:
    one, ticks = entry(0, windows=(12,)), [PageTicks(64)]
    add(one, [[-1, 1, 2, -1, 4, 5]])
    one.confirm(6, None)
    lane = one.lanes[0]
    assert one.num_ahead(lane, 6) == 5
    assert (lane.next_chunk, one.num_present(lane, 5)) == (1, 2)
    one.seen_alive(1, 19, ticks)  # the token at 19 sees from 8 on
    assert one.num_ahead(lane, 6) == 4
    one.seen_alive(1, 27, ticks)
    assert one.num_ahead(lane, 6) == 2
    assert lane.next_chunk == 4
    lane.stage = Stage.COPYING
    one.seen_alive(2, 31, ticks)
    assert one.num_ahead(lane, 6) == 2
    assert lane.next_chunk == 4  # what is being copied stays what it is


def test_the_first_report_after_a_copy_says_what_was_still_in_the_window() -> None:
    one, ticks = entry(4, windows=(12,)), [PageTicks(64)]
    one.add(b"k" * 16, np.array([[20]], dtype=np.int32), np.array([[0]]))
    for lane in one.lanes:
        lane.next_chunk = 4
    one.seen_alive(1, 19, ticks)
    lane = one.lanes[0]
    assert lane.proven == -1
    lane.stage, lane.copied = Stage.COPIED, 1
    one.seen_alive(2, 30, ticks)
    ticks[0].raise_for(np.array([20], dtype=np.int32))
    one.seen_alive(3, 31, ticks)
    assert (lane.proven, lane.has_lapsed) == (1, False)
    lane.proven = -1
    one.seen_alive(4, 30, ticks)
    assert (lane.proven, lane.has_lapsed) == (0, False)  # it changed hands, not by the window
    lane.proven = -1
    one.seen_alive(5, 31, ticks)
    assert (lane.proven, lane.has_lapsed) == (0, True)


def test_a_request_that_is_held_may_be_further_than_its_reports() -> None:
    one, ticks = entry(4, windows=(12,)), [PageTicks(64)]
    one.seen_alive(1, 14, ticks)
    lane = one.lanes[0]
    assert one.oldest_chunk(lane) == 0
    one.held_since_s = 0.0
    assert one.oldest_chunk(lane) == 1
    one.seen_alive(2, 14, ticks, reached=22)  # the forward of that report was of eight tokens
    assert one.oldest_chunk(lane) == 3
    one.tell_pages([[10, -1, 12, 99]], ticks)
    assert one.oldest_chunk(lane) == 0
    # The second has left, and the fourth is not the one that was named.
    assert [one.has_pages(lane, chunk) for chunk in range(4)] == [True, False, True, False]
    pages, seen = one.pages_and_ticks(0, 0, 4)
    assert pages.tolist() == [10, -1, 12, -1]
    assert ticks[0].num_unchanged(pages, seen) == 1


def test_a_stream_is_asked_for_its_end_and_one_that_has_none_for_nothing() -> None:
    class Stream:
        def record_event(self) -> FakeMark:
            return mark

    mark = FakeMark()
    assert mark_of(Stream()) is mark
    assert mark_of(object()) is None
