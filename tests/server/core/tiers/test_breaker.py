"""Breakers: failures in a row open them, a check-up closes them, pauses grow meanwhile."""

from __future__ import annotations

from server.core.clock import Clock, Timers
from server.core.config import SECOND_NS
from server.core.tiers.breaker import (
    CHECK_NS,
    LAST_PAUSE_NS,
    MAX_FAILURES,
    PORTER_ENDED,
    SAID_NS,
    Breaker,
)


class Bench:
    def __init__(self) -> None:
        self.timers = Timers(Clock(SECOND_NS))
        self.checks: list[int] = []
        self.changes: list[bool] = []
        self.breaker = Breaker(
            self.timers,
            lambda: self.checks.append(self.timers.clock.now_ns),
            lambda: self.changes.append(self.breaker.is_closed),
        )

    def is_closed(self) -> bool:
        return self.breaker.is_closed

    def wait(self, ns: int) -> None:
        self.timers.clock.advance(self.timers.clock.now_ns + ns)
        self.timers.run_due()

    def fail(self, times: int = MAX_FAILURES) -> None:
        for _ in range(times):
            self.breaker.note(False)


def test_failures_in_a_row_open_it_and_a_good_answer_between_does_not() -> None:
    bench = Bench()
    bench.fail(MAX_FAILURES - 1)
    bench.breaker.note(True)
    bench.fail(MAX_FAILURES - 1)
    assert bench.is_closed()
    bench.fail(1)
    assert not bench.is_closed()
    bench.fail()
    assert (bench.changes, bench.breaker.opened) == ([False], 1)


def test_it_closes_after_a_good_check_up_and_one_failure_opens_it_for_longer() -> None:
    bench = Bench()
    bench.fail()
    bench.wait(SECOND_NS - 1)
    assert not bench.checks
    bench.wait(1)
    assert len(bench.checks) == 1
    bench.breaker.checked(True)
    assert bench.is_closed()
    bench.fail(1)
    assert not bench.is_closed()
    bench.wait(SECOND_NS)
    assert len(bench.checks) == 1
    bench.wait(SECOND_NS)
    assert len(bench.checks) == 2
    bench.breaker.checked(True)
    bench.breaker.note(True)
    bench.fail(MAX_FAILURES - 1)
    assert bench.is_closed()


def test_pauses_double_up_to_the_last() -> None:
    bench = Bench()
    bench.fail()
    pauses = []
    for _ in range(8):
        begun_ns, number = bench.timers.clock.now_ns, len(bench.checks)
        while len(bench.checks) == number:
            bench.wait(SECOND_NS // 2)
        pauses.append((bench.timers.clock.now_ns - begun_ns) // SECOND_NS)
        bench.breaker.checked(False)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert LAST_PAUSE_NS == 30 * SECOND_NS


def test_who_does_not_answer_a_check_up_is_not_asked_again() -> None:
    bench = Bench()
    bench.fail()
    for _ in range(100):
        bench.wait(SECOND_NS)
    assert len(bench.checks) == 1


def test_a_lost_porter_opens_it_and_the_next_one_is_looked_at_at_once() -> None:
    bench = Bench()
    bench.breaker.ready()
    bench.breaker.lost()
    bench.wait(100 * SECOND_NS)
    assert (bench.changes, bench.checks) == ([False], [])
    bench.breaker.ready()
    bench.wait(0)
    assert len(bench.checks) == 1
    bench.breaker.checked(True)
    assert bench.is_closed()


def test_a_tier_that_is_well_is_looked_at_now_and_then_and_opened_when_it_says_it_is_not() -> None:
    bench = Bench()
    bench.breaker.ready()
    bench.wait(CHECK_NS)
    bench.breaker.checked(True)
    bench.wait(CHECK_NS)
    assert len(bench.checks) == 2
    bench.breaker.checked(False)
    assert not bench.is_closed()


def test_an_open_one_says_what_was_noticed_and_what_the_porter_said_of_late() -> None:
    bench = Bench()
    bench.breaker.said("a warning of long ago")
    bench.wait(SAID_NS + 1)
    bench.fail()
    assert bench.breaker.why == "requests failed, one after the other"
    bench.breaker.said("GET: no route to host")
    assert bench.breaker.why == "requests failed, one after the other: GET: no route to host"
    bench.breaker.lost()
    assert bench.breaker.why == f"{PORTER_ENDED}: GET: no route to host"
    bench.breaker.ready()
    bench.breaker.checked(True)
    assert (bench.is_closed(), bench.breaker.why) == (True, "")
    bench.breaker.checked(False)
    assert bench.breaker.why.startswith("a check-up failed")
