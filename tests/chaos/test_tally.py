"""Reports add up over ranks and incarnations: the last one of each counts, once."""

from __future__ import annotations

from typing import Any

from tests.chaos.stops import Call
from tests.chaos.tally import Tally


def report(loads: int = 0, wrong: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    hooks = [0] * 24
    hooks[3], hooks[10] = 999, 1
    return {
        "wrong_bytes": len(wrong),
        "wrong": wrong,
        "verified_pages": 2 * loads,
        "calls": 1,
        "hooks": hooks,
        "counts": {"loads": loads, "requests": 10},
        "counters": {"pages_loaded": 3 * loads},
        **more,
    }


def test_the_last_report_of_a_rank_counts() -> None:
    tally = Tally()
    for loads in (1, 5, 7):
        tally.report("a#1", 0, report(loads), [])
    tally.report("a#1", 1, report(0), [])
    assert (tally.sums()["loads"], tally.sums()["requests"]) == (7, 20)
    tally.ended("a#1", 2)
    tally.report("a#2", 0, report(2), [])
    assert (tally.sums()["loads"], tally.sums()["verified_pages"]) == (9, 18)
    tally.ended("a#2", 1)
    tally.ended("a#2", 1)
    assert tally.adapter() == {"pages_loaded": 27}
    assert tally.sums()["loads"] == 9


def test_events_and_troubles() -> None:
    tally = Tally()
    tally.event("engine_kills")
    tally.event("sockets_dropped", 3)
    assert (tally.sums()["engine_kills"], tally.sums()["sockets_dropped"]) == (1, 3)
    for _ in range(3):
        tally.report("a#1", 0, report(wrong=("page 3",), errors=["failed_offers: x"]), [])
    assert tally.troubles() == ["wrong bytes: a#1, rank 0: page 3", "a#1: failed_offers: x"]
    for number in range(100):
        tally.trouble(str(number))
    assert tally.num_troubles == 102
    assert len(tally.troubles()) == 60
    assert tally.sums()["wrong_bytes"] == 1


def test_the_longest_calls_come_first() -> None:
    tally = Tally()
    short, long = Call("s", 1, 5), Call("l", 9, 9)
    tally.report("a#1", 0, report(), [short])
    tally.report("b#1", 0, report(), [long])
    tally.ended("b#1", 1)
    assert tally.long_calls() == [("b#1", long), ("a#1", short)]


def test_a_share_of_hooks() -> None:
    tally = Tally()
    tally.report("a#1", 0, report(), [])
    tally.ended("a#1", 1)
    tally.report("a#2", 0, report(), [])
    assert tally.hook_us(0.999) == 16
    assert tally.hook_us(0.9995) == 2048
    assert Tally().hook_us(0.999) == 0
