"""Stopped time is taken off calls of the process that was stopped, once, and off no other's."""

from __future__ import annotations

import time

from tests.chaos.stops import HANG_NS, Stops

S = 1_000_000_000


def stopped(*spans: tuple[int, int], pid: int = 1) -> Stops:
    stops = Stops()
    for begin, end in spans:
        stops.begin(pid, begin * S)
        for span in stops._spans[pid]:
            span[1] = span[1] or end * S
    return stops


def test_what_was_stopped_does_not_count() -> None:
    stops = stopped((10, 20))
    assert stops.within(1, 5 * S, 12 * S) == 2 * S
    assert stops.within(1, 12 * S, 30 * S) == 8 * S
    assert stops.within(1, 12 * S, 15 * S) == 3 * S
    assert stops.within(1, 21 * S, 30 * S) == 0
    assert stops.within(2, 5 * S, 30 * S) == 0


def test_overlapping_stops_count_once() -> None:
    assert stopped((10, 20), (15, 22), (16, 17)).within(1, 0, 100 * S) == 12 * S


def test_a_stop_that_lasts_counts_until_now() -> None:
    stops = Stops()
    stops.begin(1)
    assert stops.is_stopped(1)
    time.sleep(0.01)
    now = time.monotonic_ns()
    assert stops.within(1, now - S, now) >= 9_000_000
    stops.end(1)
    assert not stops.is_stopped(1)
    assert stops.within(1, time.monotonic_ns(), time.monotonic_ns() + S) == 0


def test_a_hang_is_what_stops_do_not_explain() -> None:
    stops = stopped((10, 20))
    calls = [("a", 9 * S, 21 * S), ("b", 9 * S, 23 * S), ("c", 30 * S, 31 * S)]
    assert [(call.name, call.is_hang) for call in stops.judge(1, calls)] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]
    assert [call.is_hang for call in stops.judge(2, calls)] == [True, True, False]
    assert stops.judge(1, [("d", 0, HANG_NS)])[0].is_hang is False
