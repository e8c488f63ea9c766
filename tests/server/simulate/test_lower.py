from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.simulate import lower
from server.simulate.lower import (
    ASK_S,
    LEAST_PIECE_BYTES,
    MAX_RUNS,
    PIECE_BYTES,
    Contents,
    Reader,
    Writer,
)

CHUNK = LEAST_PIECE_BYTES // 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=80), st.integers(0, 6))
def test_contents_forget_what_was_used_least_recently(
    steps: list[tuple[bool, int]], room: int
) -> None:
    contents, ages = Contents(room), list[int]()
    for is_put, chunk in steps:
        if is_put:
            contents.put(chunk)
        else:
            contents.use([chunk])
        if chunk in ages:
            ages.remove(chunk)
            ages.append(chunk)
        elif is_put and room:
            ages[:] = [*ages, chunk][-room:]
        assert {number for number in range(10) if number in contents} == set(ages)
        assert len(contents) == len(ages)


def test_in_a_disks_oldest_span_the_latest_use_goes_first() -> None:
    contents = Contents(8, ages=2)
    for chunk in range(8):
        contents.put(chunk)
    for chunk in (10, 11, 12, 13, 14):
        contents.put(chunk)
    assert [chunk for chunk in range(8) if chunk in contents] == [4, 5, 6]
    assert len(contents) == 8


def test_what_has_room_for_everything_forgets_nothing() -> None:
    contents = Contents(5, ages=2, num_distinct=5)
    for chunk in range(5):
        contents.put(chunk)
    contents.use([3, 1, 7])
    assert contents.leading([0, 1, 2, 3, 4], 0, 5) == len(contents) == 5


def test_only_a_row_without_a_gap_counts() -> None:
    contents = Contents(10)
    for chunk in (1, 2, 4):
        contents.put(chunk)
    assert contents.leading([0, 1, 2, 3, 4], 1, 5) == 2
    assert contents.leading([0, 1, 2, 3, 4], 1, 2) == 1
    assert contents.leading([0, 1, 2, 3, 4], 0, 5) == 0


def test_reads_come_in_pieces_and_one_after_the_other() -> None:
    reader = Reader(CHUNK, CHUNK)
    assert reader.load(10.0, 3) == pytest.approx([12 + ASK_S, 12 + ASK_S, 13 + ASK_S])
    assert reader.load(11.0, 1) == pytest.approx([14 + ASK_S])
    assert reader.load(99.0, 1) == pytest.approx([100 + ASK_S])


def test_a_long_promotion_has_larger_pieces() -> None:
    ends = Reader(CHUNK, CHUNK).load(0.0, 1000)
    assert len(set(ends)) == -(-1000 // (PIECE_BYTES // CHUNK))
    assert len(set(Reader(CHUNK, CHUNK).load(0.0, 64))) == 8
    assert len(set(Reader(CHUNK, CHUNK).load(0.0, 8))) == 4


def test_a_large_chunk_is_a_piece_of_its_own() -> None:
    size = 3 * PIECE_BYTES
    assert Reader(size, size).load(0.0, 2) == pytest.approx([1 + ASK_S, 2 + ASK_S])


def test_promotions_under_way_are_bounded() -> None:
    reader = Reader(CHUNK, CHUNK)
    for _ in range(MAX_RUNS):
        assert not reader.is_full(0.0)
        reader.load(0.0, 1)
    assert reader.is_full(0.0)
    assert not reader.is_full(1.5)


def written(writer_room: int = 10) -> tuple[Writer, list[tuple[int, float]]]:
    done: list[tuple[int, float]] = []
    return Writer(CHUNK, CHUNK, writer_room, lambda chunk, at: done.append((chunk, at))), done


def test_writes_take_their_time_in_order() -> None:
    writer, done = written()
    writer.add(1, 0.0)
    writer.add(2, 0.5)
    writer.add(1, 0.6)
    writer.settle(0.9)
    assert done == []
    writer.settle(2.0)
    assert done == [(1, 1.0), (2, 2.0)]
    writer.add(3, 7.0)
    writer.settle(float("inf"))
    assert done[2:] == [(3, 8.0)]
    assert writer.dropped == 0


def test_a_writer_is_idle_when_nothing_waits() -> None:
    def idle_after(*chunks: int) -> bool:
        writer, _ = written()
        for chunk in chunks:
            writer.add(chunk, 0.0)
        writer.settle(1.5)
        return writer.is_idle

    assert [idle_after(), idle_after(1), idle_after(1, 2)] == [True, True, False]


def test_the_oldest_of_too_many_are_given_up() -> None:
    writer, done = written(2)
    for chunk in (1, 2, 3):
        writer.add(chunk, 0.0)
    writer.settle(9.0)
    assert [chunk for chunk, _ in done] == [2, 3]
    assert writer.dropped == 1


def test_what_is_evicted_before_its_turn_is_not_written() -> None:
    writer, done = written()
    for chunk in (1, 2):
        writer.add(chunk, 0.0)
    for chunk in (1, 2, 7):
        writer.forget(chunk, 0.5)
    writer.settle(9.0)
    assert [chunk for chunk, _ in done] == [1]
    assert writer.dropped == 1


def test_a_disk_sorts_as_its_engine_does() -> None:
    from server.tiers.disk import plan

    assert lower.DISK_AGES == plan.AGES
