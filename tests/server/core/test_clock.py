"""Time as an argument, and timers that are mostly cancelled."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from server.core.clock import Clock, Timers


def test_time_never_goes_back() -> None:
    clock = Clock()
    clock.advance(5000)
    clock.advance(4000)
    assert (clock.now_ns, clock.now_us) == (5000, 5)


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=50), st.integers(0, 100))
def test_what_is_due_and_not_cancelled_runs_in_order(
    plans: list[tuple[int, bool]], now_ns: int
) -> None:
    timers = Timers(Clock())
    ran: list[int] = []
    for due_ns, cancelled in plans:
        number = timers.at(due_ns, partial(ran.append, due_ns))
        if cancelled:
            timers.cancel(number)
    alive = sorted(due_ns for due_ns, cancelled in plans if not cancelled)
    assert timers.next_ns() == (alive[0] if alive else None)
    timers.clock.advance(now_ns)
    timers.run_due()
    assert ran == [due_ns for due_ns in alive if due_ns <= now_ns]
    later = [due_ns for due_ns in alive if due_ns > now_ns]
    assert timers.next_ns() == (later[0] if later else None)


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers(Clock())
    timers.at(10**15, lambda: None)
    for number in range(10_000):
        timers.cancel(timers.at(10**12 + number, lambda: None))
    assert len(timers._heap) < 200
    timers.cancel(0)
    assert timers.next_ns() == 10**15
