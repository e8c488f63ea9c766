import gc
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.device.cuda.order import CudaEvent, CudaStream, Order
from protocol.device.interface import DeviceError, Event
from tests.protocol.device.cuda.recording import Recorder

UUID = b"0123456789abcdef"


def rig() -> tuple[Order, Recorder]:
    recorder = Recorder()
    return Order(recorder.as_driver(), UUID, lambda: recorder.note("bind")), recorder


@given(st.lists(st.sampled_from(["record", "drop", "finish", "query"]), max_size=40), st.data())
def test_no_event_is_used_again_while_held_or_under_way(
    steps: list[str], data: st.DataObject
) -> None:
    order, recorder = rig()
    stream = order.create_stream()
    held: list[CudaEvent] = []
    for step in steps:
        if step == "record":
            event = order.record(stream)
            assert event.handle not in {other.handle for other in held}
            assert event.handle not in recorder.pending
            assert recorder.calls[-1] == ("record", event.handle, stream.handle)
            recorder.pending.add(event.handle)
            held.append(event)
            del event
        elif step == "finish" and recorder.pending:
            recorder.pending.remove(data.draw(st.sampled_from(sorted(recorder.pending))))
        elif held:
            index = data.draw(st.integers(0, len(held) - 1))
            if step == "drop":
                held.pop(index)
                gc.collect(0)
            else:
                assert held[index].query() is (held[index].handle not in recorder.pending)


def test_events_in_turn_take_one_handle() -> None:
    order, recorder = rig()
    stream = order.create_stream()
    for _ in range(100):
        assert order.record(stream).query()
    assert recorder.names().count("create_event") == 1


def test_an_event_dropped_on_another_thread_is_used_again() -> None:
    order, _ = rig()
    stream = order.create_stream()
    held = [order.record(stream)]
    number = held[0].handle
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(10)
    assert order.record(stream).handle == number


def test_what_is_done_is_asked_once() -> None:
    order, recorder = rig()
    event: Event = order.record(order.create_stream())
    assert isinstance(event, Event)
    assert event.query()
    recorder.failures["is_done"] = DeviceError("cudaErrorIllegalAddress", "query", True)
    assert event.query()


def test_errors_before_the_point_are_raised() -> None:
    order, recorder = rig()
    stream = order.create_stream()
    event = order.record(stream)
    recorder.failures["is_done"] = DeviceError("cudaErrorIllegalAddress", "query", True)
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress"):
        event.query()


def test_a_thread_with_no_device_may_ask() -> None:
    order, recorder = rig()
    event = order.record(order.create_stream())
    recorder.failures["is_done"] = DeviceError("cudaErrorDeviceUninitialized", "query")
    recorder.hooks["bind"] = recorder.failures.clear
    assert event.query()
    assert recorder.names()[-3:] == ["is_done", "bind", "is_done"]


def test_failures_of_recording_lose_no_event() -> None:
    order, recorder = rig()
    stream = order.create_stream()
    recorder.failures["record"] = DeviceError("cudaErrorInvalidResourceHandle", "record")
    for _ in range(5):
        with pytest.raises(DeviceError):
            order.record(stream)
    recorder.failures.clear()
    order.record(stream)
    assert recorder.names().count("create_event") == 1


def test_a_wait_names_stream_and_event() -> None:
    order, recorder = rig()
    first, second = order.create_stream(), order.create_stream()
    event = order.record(first)
    order.wait(second, event)
    assert recorder.calls[-1] == ("wait", second.handle, event.handle)


def test_a_stream_of_our_own_returns_at_its_end() -> None:
    order, recorder = rig()
    number = order.create_stream().handle  # dropped at once
    again = order.create_stream()
    assert again.handle == number
    again.close()
    again.close()
    streams = [order.create_stream() for _ in range(3)]
    assert len({stream.handle for stream in streams}) == 3
    assert recorder.names().count("create_stream") == 3


@pytest.mark.parametrize(("number", "is_legacy"), [(0, True), (1, True), (2, False), (777, False)])
def test_borrowed_streams_stay_the_engines(number: int, is_legacy: bool) -> None:
    order, _ = rig()
    stream = order.borrow_stream(SimpleNamespace(cuda_stream=number))
    assert (stream.handle, stream.is_legacy, stream.device_uuid) == (number, is_legacy, UUID)
    stream.close()
    del stream
    assert order.create_stream().handle != number
    assert isinstance(order.create_stream(), CudaStream)


def test_what_is_no_stream_is_refused() -> None:
    order, _ = rig()
    for bad in (None, 7, SimpleNamespace(cuda_stream="7")):
        with pytest.raises(DeviceError, match="cudaErrorInvalidResourceHandle"):
            order.borrow_stream(bad)
