"""A prefetch as a passenger: whom it stays with, and when it asks for more."""

from __future__ import annotations

from protocol.ids import RequestKey
from server.core.tiers.misses import Miss
from server.core.tiers.prefetch import Prefetch
from server.core.tiers.runs import Run
from tests.server.core.tiers.reading import world_of
from tests.server.core.world import chain


class Desk:
    def __init__(self) -> None:
        self.advanced: list[Prefetch] = []
        self.settled: list[Prefetch] = []


def ride(keys: list[bytes], run_keys: list[bytes], start: int = 0) -> tuple[Prefetch, Run, Desk]:
    world, _ = world_of()
    (session,) = world.core._state.roster.sessions.values()
    desk = Desk()
    prefetch = Prefetch(
        session,
        RequestKey(1),
        start,
        b"".join(keys[start:]),
        0,
        desk.advanced.append,
        desk.settled.append,
    )
    run = Run(
        owner=session.owner,
        index=session.owner.index,
        start=2,
        parent_key=run_keys[1],
        keys=b"".join(run_keys[2:]),
    )
    run.passengers[prefetch] = None
    prefetch.run = run
    return prefetch, run, desk


def test_it_stays_while_the_run_goes_its_way() -> None:
    keys = chain("x", 8)
    prefetch, run, desk = ride(keys, keys)
    run.frontier = 3
    assert prefetch.moved(run)
    assert not desk.advanced


def test_it_leaves_where_the_run_goes_another_way_or_it_has_all() -> None:
    keys = chain("x", 8)
    other = keys[:4] + chain("y", 8)[4:]
    for mine in (other, keys[:4]):
        prefetch, run, desk = ride(mine, keys)
        run.frontier = 1
        assert prefetch.moved(run)
        run.frontier = 2
        assert not prefetch.moved(run)
        assert desk.advanced == [prefetch]
        assert prefetch.run is None


def test_one_that_begins_further_on_waits_until_the_run_comes_there() -> None:
    keys = chain("x", 8)
    prefetch, run, desk = ride(keys, keys, start=5)
    run.frontier = 1
    assert prefetch.moved(run)
    assert not desk.advanced


def test_at_the_runs_own_end_it_waits_for_that() -> None:
    keys = chain("x", 8)
    prefetch, run, desk = ride(keys, keys[:5])
    run.frontier = 3
    assert prefetch.moved(run)
    run.why = Miss.CORRUPT
    prefetch.ended(run)
    assert desk.advanced == [prefetch]
    assert prefetch.why is Miss.CORRUPT


def test_a_run_that_brought_nothing_does_not_hide_why_the_one_before_ended() -> None:
    keys = chain("x", 8)
    prefetch, run, _ = ride(keys, keys)
    run.why = Miss.CORRUPT
    prefetch.ended(run)
    run.why = None
    prefetch.ended(run)
    assert prefetch.why is Miss.CORRUPT
    run.frontier = 1
    prefetch.ended(run)
    assert prefetch.why is None


def test_once_final_it_asks_for_nothing() -> None:
    keys = chain("x", 8)
    prefetch, run, desk = ride(keys, keys)
    prefetch.finish(Miss.DEADLINE)
    assert not run.passengers
    assert desk.settled == [prefetch]
    run.frontier = 3
    assert not prefetch.moved(run)
    prefetch.ended(run)
    assert not desk.advanced
    prefetch.finish(None)
    assert prefetch.why is Miss.DEADLINE
