import threading
import time
from collections.abc import Callable, Iterator

import pytest

from adapter.conformance.host.errors import StreamError
from adapter.conformance.host.streams import HostEvent, HostStream

WAIT_S = 10.0


@pytest.fixture
def pair() -> Iterator[tuple[HostStream, HostStream]]:
    streams = HostStream("a"), HostStream("b")
    yield streams
    for stream in streams:
        stream.close(WAIT_S)


Pair = tuple[HostStream, HostStream]


def test_work_runs_in_order_on_one_thread_of_its_own(pair: Pair) -> None:
    stream, _ = pair
    seen: list[tuple[int, str]] = []
    for i in range(100):
        stream.enqueue(lambda i=i: seen.append((i, threading.current_thread().name)))  # type: ignore[misc]
    stream.synchronize(WAIT_S)
    assert seen == [(i, "stream-a") for i in range(100)]


def test_queueing_does_not_wait_for_the_work(pair: Pair) -> None:
    stream, _ = pair
    gate = threading.Event()
    stream.enqueue(lambda: gate.wait(WAIT_S))
    event = stream.record_event()
    assert not event.query()
    assert not stream.query()
    with pytest.raises(TimeoutError):
        event.synchronize(0.01)
    gate.set()
    event.synchronize(WAIT_S)
    assert event.query()


def test_one_stream_waits_for_another(pair: Pair) -> None:
    first, second = pair
    gate, seen = threading.Event(), []
    first.enqueue(lambda: gate.wait(WAIT_S))
    first.enqueue(lambda: seen.append("first"))
    second.wait_stream(first)
    second.enqueue(lambda: seen.append("second"))
    assert seen == []
    gate.set()
    second.synchronize(WAIT_S)
    assert seen == ["first", "second"]


def test_a_wait_is_for_the_point_recorded_when_it_was_queued(pair: Pair) -> None:
    first, second = pair
    gate, event = threading.Event(), HostEvent()
    event.record(first)
    event.wait(second)
    first.enqueue(lambda: gate.wait(WAIT_S))
    event.record(first)  # later, behind the gate: not what second waits for
    second.synchronize(WAIT_S)
    assert not event.query()
    gate.set()
    event.synchronize(WAIT_S)


def test_an_event_never_recorded_is_complete(pair: Pair) -> None:
    event = HostEvent()
    assert event.query()
    event.synchronize(0)
    pair[0].wait_event(event)
    pair[0].synchronize(WAIT_S)


def test_query_turns_true_when_all_is_done(pair: Pair) -> None:
    stream, _ = pair
    assert stream.query()
    stream.enqueue(lambda: None)
    deadline = time.monotonic() + WAIT_S
    while not stream.query():
        assert time.monotonic() < deadline


def test_an_error_is_sticky_and_skips_later_work(pair: Pair) -> None:
    stream, _ = pair
    seen: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError("boom")

    before = stream.record_event()
    stream.enqueue(fail)
    stream.enqueue(lambda: seen.append("never"))
    after = stream.record_event()
    before.synchronize(WAIT_S)
    waits: list[Callable[[float], None]] = [after.synchronize, stream.synchronize]
    for wait in waits:
        with pytest.raises(StreamError, match="boom") as caught:
            wait(WAIT_S)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(StreamError):
        after.query()
    with pytest.raises(StreamError):
        stream.query()
    assert seen == []


def test_an_error_reaches_streams_that_wait_for_it(pair: Pair) -> None:
    first, second = pair

    def fail() -> None:
        raise ValueError("boom")

    first.enqueue(fail)
    second.wait_stream(first)
    with pytest.raises(StreamError, match="boom"):
        second.synchronize(WAIT_S)


def test_close_lets_queued_work_end() -> None:
    stream, seen = HostStream("c"), []
    for i in range(10):
        stream.enqueue(lambda i=i: seen.append(i))  # type: ignore[misc]
    stream.close(WAIT_S)
    assert seen == list(range(10))
    assert "stream-c" not in {thread.name for thread in threading.enumerate()}
