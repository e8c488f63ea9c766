"""The breaker's states and its growing pauses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapter.breaker import CALM_NS, FIRST_DELAY_NS, MAX_DELAY_NS, Breaker


def test_first_trip_opens_and_plans_a_probe_soon() -> None:
    told: list[int] = []
    breaker = Breaker(lambda: told.append(1))
    assert breaker.probe_at_ns() is None
    breaker.trip("slow", 1000)
    breaker.trip("slower", 2000)
    assert breaker.is_open
    assert breaker.reason == "slow"
    assert breaker.probe_at_ns() == 1000 + FIRST_DELAY_NS
    assert told == [1]


def test_answered_probe_closes() -> None:
    breaker = Breaker(lambda: None)
    breaker.trip("slow", 0)
    breaker.close(10)
    assert not breaker.is_open
    assert breaker.probe_at_ns() is None


def test_failed_probes_double_the_pause_up_to_two_seconds() -> None:
    breaker = Breaker(lambda: None)
    breaker.trip("slow", 0)
    now_ns, pauses = 0, []
    for _ in range(10):
        probe_at_ns = breaker.probe_at_ns()
        assert probe_at_ns is not None
        pauses.append(probe_at_ns - now_ns)
        now_ns = probe_at_ns
        breaker.probe_failed(now_ns)
    assert pauses[:3] == [FIRST_DELAY_NS, 2 * FIRST_DELAY_NS, 4 * FIRST_DELAY_NS]
    assert pauses[-1] == MAX_DELAY_NS


def test_a_server_that_only_answers_probes_is_asked_less_and_less() -> None:
    breaker = Breaker(lambda: None)
    now_ns, pauses = 0, []
    for _ in range(8):
        breaker.trip("calls time out", now_ns)
        probe_at_ns = breaker.probe_at_ns()
        assert probe_at_ns is not None
        pauses.append(probe_at_ns - now_ns)
        now_ns = probe_at_ns
        breaker.close(now_ns)
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_DELAY_NS
    breaker.trip("after a calm time", now_ns + CALM_NS)
    assert breaker.probe_at_ns() == now_ns + CALM_NS + FIRST_DELAY_NS


@given(st.lists(st.tuples(st.sampled_from(["trip", "fail", "close"]), st.integers(0, 10**10))))
def test_pauses_stay_within_bounds(steps: list[tuple[str, int]]) -> None:
    breaker = Breaker(lambda: None)
    now_ns = 0
    for what, forward_ns in steps:
        now_ns += forward_ns
        was_open = breaker.is_open
        if what == "trip":
            breaker.trip("x", now_ns)
            assert breaker.is_open
        elif what == "fail" and was_open:
            breaker.probe_failed(now_ns)
        elif what == "close":
            breaker.close(now_ns)
            assert not breaker.is_open
        probe_at_ns = breaker.probe_at_ns()
        assert (probe_at_ns is None) == (not breaker.is_open)
        if probe_at_ns is not None and not (what == "trip" and was_open) and what != "close":
            assert FIRST_DELAY_NS <= probe_at_ns - now_ns <= MAX_DELAY_NS or was_open
