import gc
import pickle
import random
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.device.interface import DeviceError
from protocol.device.simulated.streams import (
    BorrowedStream,
    SimulatedEvent,
    SimulatedStream,
    stream_by_number,
)
from tests.protocol.device.moved import wait, wait_for


class Owner:
    """What streams ask of a device, with short random pauses."""

    uuid = b"SIMULATED-GPU-00"

    def __init__(self, seed: int = 0, pause_s: float = 0.0) -> None:
        self.lost: DeviceError | None = None
        self._rng = random.Random(seed)
        self._pause_s = pause_s

    def lose(self, error: DeviceError) -> None:
        self.lost = error

    def pause(self) -> None:
        if self._pause_s:
            time.sleep(self._rng.random() * self._pause_s)

    def meet(self, call: str) -> None:
        pass


def held(stream: SimulatedStream) -> Callable[[], None]:
    """Holds a stream up at its present end; what comes back lets it go on."""
    gate = threading.Event()
    stream.enqueue(lambda: gate.wait(10))
    return gate.set


def test_work_runs_later_and_in_order() -> None:
    stream, done = SimulatedStream(Owner(), "m"), list[int]()
    let_go = held(stream)
    for number in range(20):
        stream.enqueue(lambda number=number: done.append(number))  # type: ignore[misc]
    event = stream.record_event()
    assert (done, event.query(), stream.query()) == ([], False, False)
    let_go()
    wait(event)
    assert done == list(range(20))
    wait_for(stream.query)
    stream.close(10)


STEPS = st.lists(
    st.tuples(st.sampled_from(["work", "record", "wait"]), st.integers(0, 2), st.integers(0, 1)),
    max_size=25,
)


@given(STEPS, st.integers(0, 1000))
@settings(max_examples=25)
def test_a_wait_takes_the_record_made_before_it(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    streams = [SimulatedStream(Owner(seed + n, 0.001), str(n)) for n in range(3)]
    events = [SimulatedEvent(), SimulatedEvent()]
    done: list[int] = []
    queued: list[list[int]] = [[], [], []]  # the work on each stream
    behind: list[set[int]] = [set(), set(), set()]  # what later work on each stream comes after
    recorded: list[set[int]] = [set(), set()]
    before: dict[int, set[int]] = {}
    for number, (step, at, event) in enumerate(steps):
        if step == "work":
            before[number] = behind[at] | set(queued[at])
            queued[at].append(number)
            streams[at].enqueue(lambda number=number: done.append(number))  # type: ignore[misc]
        elif step == "record":
            events[event].record(streams[at])
            recorded[event] = behind[at] | set(queued[at])
        else:
            events[event].wait(streams[at])
            behind[at] |= recorded[event]
    for stream in streams:
        stream.synchronize(10)
        stream.close(10)
    assert sorted(done) == sorted(before)
    place = {number: index for index, number in enumerate(done)}
    assert all(place[b] < place[number] for number in before for b in before[number])


def test_a_wait_does_not_follow_an_event_that_is_recorded_again() -> None:
    early, late, waiter = (SimulatedStream(Owner(), name) for name in "elw")
    event = early.record_event()
    waiter.wait_event(event)
    reached = waiter.record_event()
    let_go = held(late)
    event.record(late)
    wait(reached)
    assert not event.query()
    let_go()
    wait(event)
    for stream in (early, late, waiter):
        stream.close(10)


def test_an_event_never_recorded_is_done_and_holds_nobody_up() -> None:
    event, stream = SimulatedEvent(), SimulatedStream(Owner(), "m")
    assert event.query()
    event.synchronize(0)
    event.wait(stream)
    wait(stream.record_event())
    stream.close(10)


def test_a_stream_waits_for_another_streams_work() -> None:
    first, second = SimulatedStream(Owner(), "a"), SimulatedStream(Owner(), "b")
    let_go = held(first)
    second.wait_stream(first)
    event = second.record_event()
    with pytest.raises(TimeoutError):
        event.synchronize(0.03)
    let_go()
    wait(event)
    first.close(10)
    second.close(10)


def test_an_error_sticks_to_the_stream_and_to_who_waits_for_it() -> None:
    owner = Owner()
    first, second, third = (SimulatedStream(owner, name) for name in "abc")
    good = first.record_event()
    done: list[str] = []
    first.enqueue(lambda: 1 / 0)
    first.enqueue(lambda: done.append("after"))
    bad = first.record_event()
    second.wait_event(bad)
    second.enqueue(lambda: done.append("waiter"))
    wait(good)
    for ask in (bad.query, first.query, second.query, second.synchronize):
        with pytest.raises(DeviceError, match="ZeroDivisionError"):
            wait_for(lambda ask=ask: ask() is None or ask())  # type: ignore[misc]
    third.enqueue(lambda: done.append("third"))
    wait(third.record_event())
    assert done == ["third"]
    assert owner.lost is None
    for stream in (first, second, third):
        stream.close(10)


def test_a_sticky_error_ends_the_device_and_wakes_who_waits() -> None:
    owner = Owner()
    stuck, broken, waiter = (SimulatedStream(owner, name) for name in "sbw")
    let_go = held(stuck)
    waiter.wait_event(stuck.record_event())
    behind = waiter.record_event()

    def fail() -> None:
        raise DeviceError("cudaErrorIllegalAddress", "test", is_sticky=True)

    broken.enqueue(fail)
    wait_for(lambda: owner.lost is not None)
    for ask in (behind.query, stuck.query, waiter.query):
        with pytest.raises(DeviceError, match="cudaErrorIllegalAddress") as raised:
            ask()
        assert raised.value.is_sticky
    waiter.close(10)
    let_go()
    stuck.close(10)
    broken.close(10)


def test_threads_end_when_closed_and_when_forgotten() -> None:
    def running() -> int:
        return sum(thread.name == "stream-counted" for thread in threading.enumerate())

    closed, forgotten = (SimulatedStream(Owner(), "counted") for _ in range(2))
    done: list[int] = []
    number = forgotten.cuda_stream
    forgotten.enqueue(lambda own=forgotten: done.append(own.cuda_stream))  # type: ignore[misc]
    assert stream_by_number(number) is forgotten
    closed.close(10)
    closed.close(10)
    with pytest.raises(DeviceError, match="ended"):
        closed.enqueue(lambda: None)
    assert running() == 1
    del forgotten
    gc.collect()
    wait_for(lambda: running() == 0)
    assert done == [number]
    assert stream_by_number(number) is None


def test_a_borrowed_stream_is_left_alone() -> None:
    stream = SimulatedStream(Owner(), "m")
    lent = BorrowedStream(stream)
    assert lent.device_uuid == stream.device_uuid == Owner.uuid
    lent.close()
    wait(stream.record_event())
    stream.close(10)


def test_an_event_means_nothing_in_another_process() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(SimulatedEvent())
