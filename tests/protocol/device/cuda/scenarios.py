"""What the CUDA backend does, through NVIDIA's bindings, on the pretended driver.

Each function is a test of its own: run by name in a new process, so that neither the pretended
driver nor what a scenario breaks is seen by anything else. Fails by an exception.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.device.backends import device_by_uuid, device_of, visible_devices
from protocol.device.cuda.backend import CudaDevice
from protocol.device.cuda.copies import Copies, Way
from protocol.device.cuda.driver import load_driver
from protocol.device.cuda.kernel import GatherKernel
from protocol.device.cuda.order import CudaStream, Order
from protocol.device.interface import (
    Batch,
    DeviceError,
    DeviceMemory,
    Direction,
    MemoryKind,
    batch_of,
)

PRETENDED: Any = ctypes.CDLL(os.path.join(os.environ.get("PRETENDED", ""), "libcuda.so.1"))
PRETENDED.pretend_log.restype = ctypes.c_char_p
PRETENDED.pretend_memory.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int]


def log() -> list[str]:
    """The calls since it was last asked."""
    text: bytes = PRETENDED.pretend_log()
    PRETENDED.pretend_clear()
    return text.decode().splitlines()


def bound() -> CudaDevice:
    """Device 0, bound, its log empty."""
    device = visible_devices()[0]
    assert isinstance(device, CudaDevice)
    device.bind()
    log()
    return device


def bytes_at(address: int, num_bytes: int) -> NDArray[np.uint8]:
    """What lies in pretended device memory."""
    return np.frombuffer(
        memoryview((ctypes.c_uint8 * num_bytes).from_address(address)), dtype=np.uint8
    )


class Engine:
    """What an engine hands over as its stream."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number


def devices_are_found_by_memory_and_by_name() -> None:
    first, second = visible_devices()
    assert (first.uuid, first.name) == (b"PRETENDED-GPU-00", "pretended GPU 0")
    assert device_by_uuid(b"PRETENDED-GPU-01") is second
    assert visible_devices()[1] is second
    with pytest.raises(DeviceError, match="no GPU here"):
        device_by_uuid(b"PRETENDED-GPU-07")
    PRETENDED.pretend_memory(1 << 40, 1 << 20, 0, 1)
    assert device_of("cuda", (1 << 40) + 5) is first
    assert device_of("cuda", 1 << 41) is None
    assert not any("Ctx" in line for line in log()), "finding a device makes no context"


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
    assert log() == [
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


def _copies_with_a_kernel(device: CudaDevice) -> tuple[Copies, GatherKernel]:
    """As the device has them, but for the compiler: NVRTC knows a driver that is none."""
    driver = load_driver()
    assert isinstance(device.kernel, GatherKernel)
    kernel = GatherKernel(driver, 90, device.bind, lambda capability: b"\x7fELF for the driver")
    return Copies(driver, Order(driver, device.uuid), kernel, 1 << 30), kernel


def _filled(device: CudaDevice, num_bytes: int) -> tuple[int, NDArray[np.uint8], int]:
    """Device memory, and a page-locked buffer with random bytes."""
    buffer = device.pinned_buffer(num_bytes)
    buffer.view[:] = np.random.default_rng(1).integers(0, 256, num_bytes, dtype=np.uint8)
    return device.allocate(num_bytes).address, buffer.view, buffer.address


def _scattered(target: int, source: int, num: int, size: int) -> Batch:
    """Pieces in mixed order, none next to another."""
    order = np.random.default_rng(2).permutation(num)
    sizes = np.full(num, size)
    return Batch(target + order * size * 2, source + order[::-1] * size * 2, sizes)


def _is_copied(batch: Batch) -> bool:
    columns = (batch.targets.tolist(), batch.sources.tolist(), batch.sizes.tolist())
    return all(
        bytes_at(target, size).tobytes() == bytes_at(source, size).tobytes()
        for target, source, size in zip(*columns, strict=True)
    )


def every_way_of_copying_moves_the_bytes() -> None:
    device = bound()
    memory, _, host = _filled(device, 4 << 20)
    own = device.create_stream()
    copies, kernel = _copies_with_a_kernel(device)
    batches = {
        Way.EACH: batch_of([(memory, host, 100), (memory + 200, host + 300, 50)]),
        Way.ROWS: batch_of([(memory + i * 64, host + i * 4096, 64) for i in range(20)]),
        Way.BATCH: _scattered(memory, host, 50, 20000),
        Way.KERNEL: _scattered(memory, host, 450, 1000),
    }
    copies.queue(own, batches[Way.KERNEL])  # a kernel is made because of it
    assert kernel.wait_until_made(60), kernel.failure
    for way, batch in batches.items():
        bytes_at(memory, 4 << 20)[:] = 0
        log()
        assert copies.queue(own, batch) is way
        assert _is_copied(batch), way
        back = Batch(batch.sources, batch.targets, batch.sizes)
        device.copy(own, back, Direction.TO_HOST)
    assert device.copies.queue(own, batch_of([])) is None


def the_numbers_of_the_calls_are_right() -> None:
    device = bound()
    memory, _, host = _filled(device, 4 << 20)
    own = device.create_stream()
    stream = int(own.handle)
    assert f"cuStreamCreate {1}" in log()
    device.copies.queue(own, _scattered(memory, host, 50, 20000))
    device.copies.queue(own, batch_of([(memory + i * 64, host + i * 4096, 64) for i in range(20)]))
    assert log() == [f"cuMemcpyBatchAsync 50 1 1 {stream}", f"cuMemcpy2DAsync 64 20 {stream}"]
    copies, kernel = _copies_with_a_kernel(device)
    assert kernel.wait_until_made(60), kernel.failure
    log()
    copies.queue(own, _scattered(memory, host, 450, 1000))
    launches = [f"cuLaunchKernel {blocks} 256 {stream}" for blocks in (25, 25, 7)]
    assert log() == launches


def a_batch_on_the_legacy_stream_stays_in_its_order() -> None:
    device = bound()
    memory, _, host = _filled(device, 4 << 20)
    for number in (0, 1):
        main = device.borrow_stream(Engine(number))
        batch = _scattered(memory, host, 50, 20000)
        log()
        assert device.copies.queue(main, batch) is Way.BATCH
        assert _is_copied(batch)
        told = [line.split() for line in log() if not line.startswith(("cuEventC", "cuEventQ"))]
        if told[0][0] == "cuStreamCreate":
            told.pop(0)
        before, behind, copied, after, awaited = told
        beside = copied[-1]
        assert before == ["cuEventRecord", before[1], str(number)]
        assert behind == ["cuStreamWaitEvent", beside, before[1], "0"]
        assert copied == ["cuMemcpyBatchAsync", "50", "1", "1", beside]
        assert after == ["cuEventRecord", after[1], beside]
        assert awaited == ["cuStreamWaitEvent", str(number), after[1], "0"]
        assert beside not in ("0", "1")


def a_failed_batch_is_still_waited_for() -> None:
    device = bound()
    memory, _, host = _filled(device, 4 << 20)
    main = device.borrow_stream(Engine(0))
    PRETENDED.pretend_fail(b"cuMemcpyBatchAsync", 2)
    with pytest.raises(DeviceError, match="cudaErrorMemoryAllocation"):
        device.copies.queue(main, _scattered(memory, host, 50, 20000))
    last = log()[-1].split()
    assert last[:2] == ["cuStreamWaitEvent", "0"]
    PRETENDED.pretend_fail(b"cuMemcpyBatchAsync", 0)
    assert device.copies.queue(main, _scattered(memory, host, 50, 20000)) is Way.BATCH


def without_the_batched_call_copies_go_one_by_one() -> None:
    device = bound()
    memory, _, host = _filled(device, 4 << 20)
    PRETENDED.pretend_fail(b"cuMemcpyBatchAsync", 801)
    own = device.create_stream()
    for _ in range(2):
        batch = _scattered(memory, host, 50, 20000)
        assert device.copies.queue(own, batch) is Way.EACH
        assert _is_copied(batch)
    assert sum(line.startswith("cuMemcpyBatchAsync") for line in log()) == 1, "tried once"


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


def memory_without_nvml_is_asked_of_the_driver() -> None:
    device = visible_devices()[0]
    assert device.memory() == DeviceMemory(3 << 20, 4 << 20)


def a_driver_that_does_not_begin_is_one_clear_error() -> None:
    PRETENDED.pretend_fail(b"cuInit", 100)
    with pytest.raises(DeviceError, match="no NVIDIA driver that works") as caught:
        visible_devices()
    assert caught.value.code == "cudaErrorNoDevice"
    PRETENDED.pretend_fail(b"cuInit", 0)
    assert len(visible_devices()) == 2, "a failure is not remembered"


def a_device_whose_kernels_cannot_read_host_memory_has_none() -> None:
    PRETENDED.pretend_attribute(91, 0)
    device = bound()
    memory, _, host = _filled(device, 4 << 20)
    own = device.create_stream()
    for _ in range(2):
        assert device.copies.queue(own, _scattered(memory, host, 450, 1000)) is Way.BATCH


SCENARIOS: dict[str, Callable[[], None]] = {
    name: made
    for name, made in list(globals().items())
    if callable(made)
    and getattr(made, "__module__", "") == __name__
    and not name.startswith("_")
    and name not in ("log", "bound", "bytes_at", "Engine")
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
