"""What the CUDA backend does, through NVIDIA's bindings, on the pretended driver.

Each function of this module and of ``copyscenarios`` is a test. This module run as a program forks
for each, so that nothing else sees the pretended driver or what a scenario breaks. A scenario fails
by an exception. The program prints a JSON object: of each why it failed, or null.
"""

from __future__ import annotations

import faulthandler
import gc
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import cast

import pytest

from protocol.device.backends import device_by_uuid, device_of, visible_devices
from protocol.device.cuda import backend
from protocol.device.cuda.backend import CudaDevice
from protocol.device.cuda.driver import load_driver
from protocol.device.cuda.order import CudaStream
from protocol.device.interface import (
    DeviceError,
    DeviceMemory,
    MemoryKind,
)
from tests.protocol.device.cuda import copyscenarios
from tests.protocol.device.cuda.pretending import PRETENDED, Engine, bound, log


def devices_are_found_by_memory_and_by_name() -> None:
    first, second = visible_devices()
    assert (first.uuid, first.name) == (b"PRETENDED-GPU-00", "pretended GPU 0")
    assert device_by_uuid(b"PRETENDED-GPU-01") is second
    assert visible_devices()[1] is second
    with pytest.raises(DeviceError, match="no GPU here"):
        device_by_uuid(b"PRETENDED-GPU-07")
    assert device_of("cuda", 1 << 41) is None
    assert not any("Ctx" in line for line in log()), "finding a device makes no context"
    PRETENDED.pretend_memory(1 << 40, 1 << 20, 0, 1)  # an engine's, so there is a context
    assert device_of("cuda", (1 << 40) + 5) is first


def the_node_it_is_near_to_is_found_by_its_place_on_the_bus() -> None:
    driver = load_driver()
    assert driver.pci_bus_id(driver.device(1)) == "FFFF:01:00.0"
    assert [device.numa_node for device in visible_devices()] == [None, None]  # no such bus here
    nodes = {"FFFF:00:00.0": 1, "FFFF:01:00.0": 0}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(backend, "node_of", nodes.get)
        assert [CudaDevice(driver, ordinal).numa_node for ordinal in (0, 1)] == [1, 0]
    assert not any("Ctx" in line for line in log()), "asked before there is a context"


def a_thread_that_has_not_bound_is_refused() -> None:
    device = visible_devices()[0]
    with pytest.raises(DeviceError, match="cudaErrorDeviceUninitialized"):
        device.create_stream()
    device.bind()
    device.bind()
    device.create_stream()
    told = log()
    assert told.count("cuDevicePrimaryCtxRetain 0") == 1
    assert told.count("cuCtxSetCurrent 256") == 2


def places_are_told_apart() -> None:
    device = bound()
    kinds = {
        MemoryKind.DEVICE: (1 << 40, 0, 1),
        MemoryKind.VIRTUAL: (2 << 40, 0, 0),
        MemoryKind.MANAGED: (3 << 40, 1, 0),
    }
    for kind, (base, is_managed, is_exportable) in kinds.items():
        PRETENDED.pretend_memory(base, 1 << 20, is_managed, is_exportable)
        place = device.place(base + 100)
        assert place is not None
        assert (place.kind, place.base, place.num_bytes) == (kind, base, 1 << 20)
        assert place.device_uuid == device.uuid
    buffer = device.pinned_buffer(8192)
    place = device.place(buffer.address + 1)
    assert place is not None
    assert (place.kind, place.device_uuid, place.num_bytes) == (MemoryKind.HOST, b"", 8192)
    assert device.place(4096) is None


def only_one_allocation_is_exported() -> None:
    device = bound()
    memory = device.allocate(1 << 16)
    exported = device.export(memory.address + 4097)
    assert (exported.base, exported.num_bytes) == (memory.address, 1 << 16)
    assert len(exported.handle) == 64
    assert exported.handle[8:] == bytes(range(8, 64))
    assert exported.device_uuid == device.uuid
    PRETENDED.pretend_memory(2 << 40, 1 << 20, 0, 0)
    for address in (2 << 40, 4096, device.pinned_buffer(4096).address):
        with pytest.raises(DeviceError, match="cudaErrorNotSupported"):
            device.export(address)


def an_allocation_is_opened_once_and_closed_with_its_last_user() -> None:
    device = bound()
    memory = device.allocate(1 << 16)
    handle = device.export(memory.address).handle
    first, second = device.open(handle), device.open(handle)
    assert PRETENDED.pretend_opened() == 1
    assert (second.base, second.num_bytes) == (memory.address, 1 << 16)
    first.close()
    first.close()
    assert PRETENDED.pretend_opened() == 1
    with pytest.raises(DeviceError, match="given back"):
        first.as_array()
    second.close()
    assert PRETENDED.pretend_opened() == 0
    assert "cuIpcOpenMemHandle 1" in log()
    device.open(handle).close()
    assert PRETENDED.pretend_opened() == 0
    for bad in (b"short", bytes(64)):
        with pytest.raises(DeviceError, match="cudaErrorInvalidValue"):
            device.open(bad)
    memory.close()
    with pytest.raises(DeviceError):  # the real length is not known: not kept open
        device.open(handle)
    assert PRETENDED.pretend_opened() == 0


def pins_are_read_only_where_the_device_can() -> None:
    device = bound()
    pinned = device.pin(1 << 30, 1 << 20)
    assert pinned.is_read_only
    pinned.close()
    pinned.close()
    over = device.pinned_over(1 << 30, 1 << 20)
    assert not over.is_read_only
    assert [line for line in log() if "Ctx" not in line] == [
        f"cuMemHostRegister {1 << 20} {1 | 2 | 8}",
        "cuMemHostUnregister",
        f"cuMemHostRegister {1 << 20} {1 | 2}",
    ]
    over.close()
    PRETENDED.pretend_attribute(113, 0)  # refused although it was promised
    assert not device.pin(1 << 30, 1 << 20).is_read_only
    PRETENDED.pretend_fail(b"cuMemHostRegister", 2)
    log()
    with pytest.raises(DeviceError, match="cudaErrorMemoryAllocation"):
        device.pin(1 << 31, 1 << 20)
    assert len(log()) == 1, "no second try of what failed for another reason"


def page_locking_lets_other_threads_run() -> None:
    device = bound()
    PRETENDED.pretend_delay(b"cuMemHostRegister", 400)
    ticks: list[float] = []
    end = threading.Event()

    def tick() -> None:
        while not end.wait(0.005):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    device.pin(1 << 30, 1 << 20)
    stop = time.monotonic()
    end.set()
    thread.join(10)
    assert stop - begin > 0.35
    assert sum(begin < tick < stop for tick in ticks) > 10


def events_are_used_again_only_when_done_and_dropped() -> None:
    device = bound()
    stream = device.create_stream()
    first = device.record(stream)
    second = device.record(stream)
    held = {int(first.handle), int(second.handle)}
    assert len(held) == 2
    assert f"cuEventCreate {2}" in log()
    PRETENDED.pretend_pending(1)
    assert not first.query()
    assert first.query()
    dropped = int(first.handle)
    del first
    gc.collect()
    PRETENDED.pretend_pending(1)
    other = device.record(stream)
    assert int(other.handle) not in held, "what is under way is not used again"
    again = device.record(stream)
    assert int(again.handle) == dropped
    assert int(second.handle) != dropped
    device.wait(stream, again)
    log()
    assert again.query()
    assert again.query()
    assert len(log()) == 1, "what is done is not asked again"


def streams_are_used_again_after_their_end() -> None:
    device = bound()
    stream = device.create_stream()
    number = int(stream.handle)
    stream.close()
    stream.close()
    again, other = device.create_stream(), device.create_stream()
    assert int(again.handle) == number
    assert int(other.handle) != number
    borrowed = device.borrow_stream(Engine(77))
    borrowed.close()
    assert int(device.create_stream().handle) != 77
    assert isinstance(again, CudaStream)
    assert again.device_uuid == device.uuid
    with pytest.raises(DeviceError, match="cudaErrorInvalidResourceHandle"):
        device.borrow_stream(object())


def errors_have_names_and_say_when_all_is_over() -> None:
    device = bound()
    stream = device.create_stream()
    event = device.record(stream)
    for code, name, is_sticky in (
        (700, "cudaErrorIllegalAddress", True),
        (719, "cudaErrorLaunchFailure", True),
        (400, "cudaErrorInvalidResourceHandle", False),
    ):
        PRETENDED.pretend_fail(b"cuEventQuery", code)
        with pytest.raises(DeviceError, match=f"cuEventQuery: {name}") as caught:
            event.query()
        assert (caught.value.code, caught.value.is_sticky) == (name, is_sticky)
    PRETENDED.pretend_fail(b"cuEventRecord", 123456)  # a number that no release knows
    with pytest.raises(DeviceError) as caught:
        device.record(stream)
    assert caught.value.is_sticky
    PRETENDED.pretend_fail(b"cuMemHostUnregister", 700)
    device.pin(1 << 30, 4096).close()  # giving back raises nothing


def any_thread_may_ask_and_give_back() -> None:
    first, second = cast(CudaDevice, visible_devices()[1]), bound()
    first.bind()
    stream = first.create_stream()
    event, buffer = first.record(stream), first.pinned_buffer(4096)
    pinned, memory = first.pin(1 << 30, 4096), first.allocate(4096)
    handle = first.export(memory.address).handle
    opened = first.open(handle)
    failures: list[BaseException] = []

    def use() -> None:
        try:
            second.bind()
            for held in (buffer, pinned, opened, memory):
                held.close()
            assert event.query()
            assert PRETENDED.pretend_current() == 256, "still the thread's own device"
        except BaseException as error:
            failures.append(error)
            raise

    log()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join(20)
    told = log()
    entered = [line for line in told if line.startswith("cuCtx")]
    assert entered == ["cuCtxSetCurrent 256"] + ["cuCtxPushCurrent 257", "cuCtxPopCurrent"] * 4
    other = first.record(stream)
    thread = threading.Thread(target=lambda: failures.extend([] if other.query() else [KeyError()]))
    thread.start()
    thread.join(20)
    assert failures == []
    assert "cuCtxSetCurrent 257" in log(), "bound for want of any"


def memory_without_nvml_is_asked_of_the_driver() -> None:
    device = visible_devices()[0]
    assert device.memory() == DeviceMemory(3 << 20, 4 << 20)


def a_driver_that_does_not_begin_is_one_clear_error() -> None:
    PRETENDED.pretend_fail(b"cuInit", 100)
    with pytest.raises(DeviceError, match="no NVIDIA driver that works") as caught:
        visible_devices()
    assert str(caught.value).endswith("cuInit: cudaErrorNoDevice"), "one code, the driver's"
    assert caught.value.code == "cudaErrorNoDevice"
    PRETENDED.pretend_fail(b"cuInit", 0)
    assert len(visible_devices()) == 2, "a failure is not remembered"


SCENARIOS: dict[str, Callable[[], None]] = {
    name: made
    for module in (sys.modules[__name__], copyscenarios)
    for name, made in vars(module).items()
    if inspect.isfunction(made) and made.__module__ == module.__name__ and name[0] != "_"
}


def _outcome(scenario: Callable[[], None]) -> str | None:
    """Runs a scenario in a fork, which nothing of CUDA was begun before."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(50, exit=True)
        os.dup2(writer, sys.stderr.fileno())  # an exception goes all the way up and is told there
        scenario()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if status == 0 else said or f"ended with {status}"


def _broken() -> None:
    assert not visible_devices(), "the pretended driver has devices"


if __name__ == "__main__":
    outcomes = {name: _outcome(scenario) for name, scenario in SCENARIOS.items()}
    outcomes["_broken"] = _outcome(_broken)
    json.dump(outcomes, sys.stdout)
