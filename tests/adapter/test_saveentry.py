"""One request's chunks: confirmed in order, sent after the stream has passed, given up in time."""

from __future__ import annotations

import numpy as np
import pytest

from adapter.saveentry import MAX_STALLS, LostMark, SaveEntry, Stage
from tests.adapter.hostlike import FakeMark


def entry(named: int = 4, first: int = 0) -> SaveEntry:
    made = SaveEntry(1, 2, first, b"p" * 16 if first else b"")
    pages = np.arange(10, 10 + named, dtype=np.int32)
    made.add(b"".join(bytes([n]) * 16 for n in range(named)), pages, np.zeros(named, np.int64))
    return made


def test_only_named_chunks_are_confirmed() -> None:
    one = entry(2)
    one.confirm(9, None)
    assert (one.confirmed, one.passed, one.num_ready) == (2, 2, 2)
    one.confirm(1, None)
    assert one.confirmed == 2


def test_gates_are_passed_in_order() -> None:
    one, marks = entry(3), [FakeMark(False) for _ in range(3)]
    for upto, mark in enumerate(marks, start=1):
        one.confirm(upto, mark)
    one.pass_gates()
    assert (one.num_confirmed_ahead, one.num_ready, one.num_gates) == (3, 0, 3)
    marks[1].is_done = True
    one.pass_gates()
    assert one.num_ready == 0
    marks[0].is_done = True
    one.pass_gates()
    assert (one.num_ready, one.num_gates) == (2, 1)


def test_many_gates_collapse_onto_the_last() -> None:
    one, marks = entry(40), [FakeMark(False) for _ in range(40)]
    for upto, mark in enumerate(marks, start=1):
        one.confirm(upto, mark)
    assert one.num_gates <= 8
    for mark in marks[:-1]:
        mark.is_done = True
    one.pass_gates()
    assert one.num_ready <= 8
    marks[-1].is_done = True
    one.pass_gates()
    assert one.num_ready == 40


def test_a_failed_mark_ends_the_entry() -> None:
    one = entry()
    one.confirm(1, FakeMark(error=RuntimeError("gone")))
    one.pass_gates()
    assert one.ended


def test_parts_and_parents() -> None:
    one = entry(4, first=3)
    keys, pages, parent = one.part(3, 2, 1)
    assert parent == b"p" * 16
    assert keys == bytes(16) + b"\1" * 16
    assert pages.tolist() == [10, 11]
    _, pages, parent = one.part(5, 2, 1)
    assert parent == b"\1" * 16
    assert pages.tolist() == [12, 13]
    assert one.pages_and_ticks(6, 1, 1)[0].tolist() == [13]


def test_stalls_are_limited() -> None:
    one = entry()
    one.confirm(2, None)
    for count in range(MAX_STALLS):
        assert one.num_ready == 2 + count
        one.stall()
        assert one.num_ready == 0
        one.confirm(3 + count, None)
    assert one.num_ready == 0
    assert not one.is_outstanding(one.named)


@pytest.mark.parametrize(
    ("next_chunk", "stage", "expected"),
    [(0, Stage.IDLE, True), (1, Stage.IDLE, False), (1, Stage.COPYING, True)],
)
def test_outstanding(next_chunk: int, stage: Stage, expected: bool) -> None:
    one = entry(1)
    one.confirm(1, None)
    one.next_chunk, one.stage = next_chunk, stage
    assert one.is_outstanding(one.named) == expected
    assert one.is_outstanding(0) == (stage is not Stage.IDLE)


@pytest.mark.parametrize("stage", list(Stage))
def test_start_over(stage: Stage) -> None:
    one = entry()
    one.confirm(4, None)
    one.next_chunk, one.stage, one.copied = 3, stage, 1
    one.start_over()
    assert (one.stage, one.next_chunk, one.copied) == (Stage.IDLE, 0, 0)
    assert one.num_ready == (4 if stage is Stage.IDLE else 0)


def test_a_lost_mark_confirms_nothing() -> None:
    one = entry()
    one.confirm(4, LostMark(RuntimeError("no event")))
    one.pass_gates()
    assert one.ended
    assert one.num_ready == 0
