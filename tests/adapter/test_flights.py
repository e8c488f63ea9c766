"""Flights: ended once, told once, held until the device is done, whoever looks."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from adapter import flights as flights_module
from adapter.copy import LoadError
from adapter.flights import Flight, Flights, Landing, LoadedMark, NoEvent
from adapter.loadbatches import held_device_load
from adapter.loader import Loader
from protocol.device.interface import DeviceError
from protocol.errors import ErrorCode
from tests.adapter.arena import EPOCH
from tests.adapter.devicearena import DeviceArena, simulated_driver
from tests.adapter.hostlike import FakeMark
from tests.adapter.responder import PAGE_BYTES

WAIT_S = 10.0


class Watched:
    """A flight and what became of it."""

    def __init__(self, arena: DeviceArena, event: FakeMark | NoEvent, limit_s: float = 60) -> None:
        self.arena = arena
        self.events: list[object] = []
        holding = ExitStack()
        shard = arena.shard(arena.memory(), [(1, 0), (2, 1)], [3, 4])
        load = holding.enter_context(held_device_load(arena.table, EPOCH, [shard]))
        self.flight = Flight([load], holding, event, self._let_go, self._tell, limit_s)

    def _let_go(self) -> None:
        self.events.append(("let go", self.arena.users()))

    def _tell(self, failure: LoadError | None) -> None:
        self.events.append(failure and failure.code)


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceArena]:
    with simulated_driver(tmp_path, monkeypatch) as driver:
        made = DeviceArena(driver, 1, PAGE_BYTES)
        yield made
        made.close()


LET_GO = ("let go", 0)


def test_a_flight_ends_once_when_its_event_is_done(arena: DeviceArena) -> None:
    flights, event = Flights(), FakeMark(is_done=False)
    one = Watched(arena, event)
    flights.add(one.flight)
    flights.settle()
    assert (one.events, arena.users(), flights.num_flying) == ([], 2, 1)
    event.is_done = True
    for _ in range(2):
        flights.settle()
        assert one.events == [LET_GO, None]
    assert one.flight.is_over
    assert flights.num_flying == 0
    flights.check()


def test_flights_end_in_any_order(arena: DeviceArena) -> None:
    flights, marks = Flights(), [FakeMark(is_done=False) for _ in range(3)]
    found = [Watched(arena, mark) for mark in marks]
    for one in found:
        flights.add(one.flight)
    marks[1].is_done = True
    flights.settle()
    assert [one.flight.is_over for one in found] == [False, True, False]
    assert arena.users() == 4


def test_the_tripwire_is_asked_when_the_copies_are_done(arena: DeviceArena) -> None:
    one = Watched(arena, FakeMark())
    arena.files[2].set_generation(1, 9)
    one.flight.look()
    assert one.events == [LET_GO, ErrorCode.COPY_FAILED]


@pytest.mark.parametrize(
    ("error", "is_over"),
    [
        (DeviceError("cudaErrorIllegalAddress", "a copy", is_sticky=True), True),
        (DeviceError("cudaErrorUnknown", "a query"), False),
        (RuntimeError("what is that"), False),
    ],
)
def test_an_error_is_told_once_and_only_a_lost_context_reads_no_more(
    arena: DeviceArena, error: Exception, is_over: bool
) -> None:
    one = Watched(arena, FakeMark(error=error))
    one.flight.look()
    if not is_over:
        one.flight.look()
    assert one.flight.is_over == is_over
    assert one.events == [ErrorCode.COPY_FAILED] + [LET_GO] * is_over
    assert arena.users() == (0 if is_over else 2)


def test_what_failed_first_stays_so_and_the_end_is_still_waited_for(arena: DeviceArena) -> None:
    event = FakeMark(is_done=False)
    one = Watched(arena, event, limit_s=0)
    time.sleep(0.001)
    for _ in range(2):
        one.flight.look()
    assert one.events == [ErrorCode.DEADLINE_EXCEEDED]
    assert one.flight.has_failed
    event.is_done = True
    arena.files[1].set_generation(0, 9)
    one.flight.look()
    assert one.events == [ErrorCode.DEADLINE_EXCEEDED, LET_GO]


def test_without_an_event_nothing_is_ever_known_to_end(arena: DeviceArena) -> None:
    one = Watched(arena, NoEvent(DeviceError("cudaErrorUnknown", "an event")))
    one.flight.fail(LoadError(ErrorCode.COPY_FAILED, "said before"))
    one.flight.look()
    assert one.events == [ErrorCode.COPY_FAILED]
    assert not one.flight.is_over


def test_a_failure_is_never_forgotten_and_the_first_one_counts() -> None:
    flights = Flights()
    flights.check()
    for words in ("the reason", "another"):
        flights.fail(LoadError(ErrorCode.COPY_FAILED, words, slot=3))
    for _ in range(2):
        with pytest.raises(LoadError, match="the reason") as caught:
            flights.check()
        assert caught.value.detail == {"slot": 3}


# --- marks ---


def test_a_mark_is_passed_when_the_stream_is_and_the_loads_were_good(arena: DeviceArena) -> None:
    flights, event, mark = Flights(), FakeMark(), FakeMark(is_done=False)
    one = Watched(arena, event)
    flights.add(one.flight)
    guarded = LoadedMark(mark, flights)
    assert not guarded.query()
    assert flights.num_flying == 1  # a mark is asked often: no work before its time
    mark.is_done = True
    assert guarded.query()
    assert one.flight.is_over
    flights.fail(LoadError(ErrorCode.COPY_FAILED, "the reason"))
    with pytest.raises(LoadError, match="the reason"):
        guarded.query()
    with pytest.raises(RuntimeError, match="lost"):
        LoadedMark(FakeMark(error=RuntimeError("lost")), Flights()).query()


# --- the loader's part ---


def test_the_loader_ends_all_flights_while_it_looks_for_one(arena: DeviceArena) -> None:
    flights, first, second = Flights(), FakeMark(is_done=False), FakeMark(is_done=False)
    found = [Watched(arena, first), Watched(arena, second)]
    loader = Loader()
    for one in found:
        flights.add(one.flight)
        assert loader.submit(Landing(flights, one.flight))
    second.is_done = True
    wait_for(lambda: found[1].flight.is_over)
    assert arena.users() == 2
    assert not found[0].flight.is_over
    first.is_done = True
    wait_for(lambda: found[0].flight.is_over)
    loader.stop(WAIT_S)


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_stopped_loader_waits_for_the_device_a_while(
    arena: DeviceArena, has_failed: bool
) -> None:
    flights, event = Flights(), FakeMark(is_done=False)
    one = Watched(arena, event)
    flights.add(one.flight)
    if has_failed:
        one.flight.fail(LoadError(ErrorCode.COPY_FAILED, "the reason"))
    begin_s = time.monotonic()
    Landing(flights, one.flight, patience_s=0.05).run(lambda: True)
    taken_s = time.monotonic() - begin_s
    assert taken_s < 1
    assert taken_s >= (0 if has_failed else 0.05)
    assert arena.users() == 2  # held for good
    event.is_done = True
    Landing(flights, one.flight, patience_s=0).run(lambda: True)
    assert one.flight.is_over


def test_what_an_engine_leaves_behind_stays_held_though_nobody_knows_it(arena: DeviceArena) -> None:
    flights = Flights()
    flights.add(Watched(arena, FakeMark(is_done=False)).flight)
    Landing(flights, flights._flying[0], patience_s=0).run(lambda: True)
    del flights
    gc.collect()
    assert arena.users() == 2
    flights_module._FOR_GOOD.pop()
    gc.collect()
    assert arena.users() == 0


def test_many_threads_may_look(arena: DeviceArena) -> None:
    flights, marks = Flights(), [FakeMark(is_done=False) for _ in range(60)]
    found = [Watched(arena, mark) for mark in marks]
    for one in found:
        flights.add(one.flight)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            flights.settle()

    threads = [threading.Thread(target=look, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for mark in marks:
        mark.is_done = True
        time.sleep(0)
    wait_for(lambda: flights.num_flying == 0)
    is_over.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert all(one.events[1:] == [None] for one in found)
    assert arena.users() == 0


def wait_for(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)
