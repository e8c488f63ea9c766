"""Whose turn it is: gets first, puts not starved, forgetting in its place."""

import threading
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from server.porter.turns import FORGETTING, GETS_IN_A_ROW, Job, Turns
from server.porter.wire import Command, Kind
from tests.server.porter.rows import OTHER, SPACE


def job(kind: Kind, number: int, space: bytes = SPACE) -> Job:
    return Job(Command(kind, number, fingerprint=space))


def filled(kinds: Sequence[Kind], max_writers: int = 3) -> Turns:
    turns = Turns(max_writers)
    for number, kind in enumerate(kinds):
        turns.add(job(kind, number))
    return turns


def taken(turns: Turns, num: int) -> list[int]:
    numbers = []
    for _ in range(num):
        one = turns.take(asks=False)
        assert one is not None
        turns.ended(one)
        numbers.append(one.command.number)
    return numbers


def test_gets_go_before_puts_and_both_in_order() -> None:
    turns = filled([Kind.PUT, Kind.GET, Kind.PUT, Kind.GET])
    assert taken(turns, 4) == [1, 3, 0, 2]


def test_a_touch_says_nothing_of_what_is_about_to_be_forgotten() -> None:
    turns = filled([Kind.PUT, Kind.CLEAR, Kind.TOUCH, Kind.GET])
    turns.add(job(Kind.TOUCH, 4, OTHER))
    assert taken(turns, 5) == [3, 0, 1, 2, 4]


def test_a_put_is_not_starved_by_gets() -> None:
    turns = filled([Kind.GET] * (2 * GETS_IN_A_ROW) + [Kind.PUT])
    assert taken(turns, GETS_IN_A_ROW + 1)[-1] == 2 * GETS_IN_A_ROW


def test_questions_have_a_thread_of_their_own() -> None:
    turns = filled([Kind.GET, Kind.PROBE, Kind.HEALTH])
    asked = [turns.take(asks=True) for _ in range(2)]
    assert [one.command.number for one in asked if one is not None] == [1, 2]
    assert taken(turns, 1) == [0]


def test_puts_leave_threads_to_gets() -> None:
    turns = filled([Kind.PUT] * 3, max_writers=2)
    first = [turns.take(asks=False) for _ in range(2)]
    waiting = threading.Thread(target=lambda: found.append(turns.take(asks=False)))
    found: list[Job | None] = []
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    turns.add(job(Kind.GET, 9))
    waiting.join(10)
    assert found[0] is not None
    assert found[0].command.number == 9
    assert first[0] is not None
    turns.ended(first[0])
    assert taken(turns, 1) == [2]


def test_forgetting_waits_for_puts_of_its_namespace_and_later_ones_for_it() -> None:
    turns = Turns(max_writers=5)
    for number, (kind, space) in enumerate(
        [
            (Kind.PUT, SPACE),
            (Kind.CLEAR, SPACE),
            (Kind.PUT, SPACE),
            (Kind.DROP, OTHER),
            (Kind.PUT, OTHER),
        ]
    ):
        turns.add(job(kind, number, space))
    put = turns.take(asks=False)
    other = turns.take(asks=False)
    assert put is not None
    assert other is not None
    assert (put.command.number, other.command.number) == (0, 3)
    turns.ended(other)
    assert taken(turns, 1) == [4]
    turns.ended(put)
    clear = turns.take(asks=False)
    assert clear is not None
    assert clear.command.number == 1
    turns.ended(clear)
    assert taken(turns, 1) == [2]


def test_a_close_ends_every_wait_and_gives_nothing_more() -> None:
    turns = Turns(1)
    threads = [threading.Thread(target=turns.take, args=(asks,)) for asks in (True, False)]
    for thread in threads:
        thread.start()
    turns.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    turns.add(job(Kind.GET, 1))
    assert turns.take(asks=False) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([Kind.GET, Kind.PUT, Kind.DROP, Kind.CLEAR]),
            st.sampled_from([SPACE, OTHER]),
        ),
        max_size=30,
    ),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_each_is_given_once_and_writes_of_a_namespace_keep_to_the_order(
    wanted: list[tuple[Kind, bytes]], threads: int, random: object
) -> None:
    choose = getattr(random, "randrange")  # noqa: B009 - hypothesis does not name its type
    turns = Turns(max(1, threads - 1))
    for number, (kind, space) in enumerate(wanted):
        turns.add(job(kind, number, space))
    flying: list[Job] = []
    begun: list[int] = []
    while len(begun) < len(wanted) or flying:
        can_begin = len(flying) < threads and len(begun) < len(wanted)
        with turns._changed:
            one = turns._next() if can_begin else None
        if one is None:
            assert flying, "nothing can begin and nothing is under way"
            turns.ended(flying.pop(choose(len(flying))))
            continue
        for other in flying:
            same = other.command.fingerprint == one.command.fingerprint
            writes = Kind.GET not in (one.command.kind, other.command.kind)
            forgets = {one.command.kind, other.command.kind} & FORGETTING
            assert not (same and writes and forgets)
        flying.append(one)
        begun.append(one.command.number)
    assert sorted(begun) == list(range(len(wanted)))
    for at, number in enumerate(begun):
        kind, space = wanted[number]
        if kind in FORGETTING:
            earlier = {n for n in begun[:at] if wanted[n][1] == space and wanted[n][0] != Kind.GET}
            due = {n for n in range(number) if wanted[n][1] == space and wanted[n][0] != Kind.GET}
            assert due == earlier
