"""Scenarios of copies on the pretended driver; see ``scenarios``."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.device.backends import device_by_uuid, device_of, visible_devices
from protocol.device.cuda.backend import CudaDevice
from protocol.device.cuda.copies import Copies, Way
from protocol.device.cuda.driver import load_driver
from protocol.device.cuda.kernel import GatherKernel
from protocol.device.cuda.locked import Locked
from protocol.device.cuda.order import Order
from protocol.device.interface import (
    Batch,
    DeviceError,
    Direction,
    batch_of,
)
from tests.protocol.device.cuda.pretending import PRETENDED, TO_DEVICE, Engine, bound, bytes_at, log


def _copies_with_a_kernel(device: CudaDevice) -> tuple[Copies, GatherKernel]:
    """As the device has them, but for the compiler: NVRTC knows a driver that is none."""
    driver = load_driver()
    assert isinstance(device.kernel, GatherKernel)
    kernel = GatherKernel(driver, 90, device.bind, lambda capability: b"\x7fELF for the driver")
    return Copies(driver, Order(driver, device.uuid, device.bind), kernel, Locked()), kernel


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
        Way.BATCH: _scattered(memory, host, 50, 20000),
        Way.KERNEL: _scattered(memory, host, 450, 1000),
    }
    assert kernel.wait_until_made(60), kernel.failure
    for way, batch in batches.items():
        bytes_at(memory, 4 << 20)[:] = 0
        log()
        assert copies.queue(own, batch, TO_DEVICE) is way
        assert _is_copied(batch), way
        back = Batch(batch.sources, batch.targets, batch.sizes)
        device.copy(own, back, Direction.TO_HOST)
    assert device.copies.queue(own, batch_of([]), TO_DEVICE) is None


def the_numbers_of_the_calls_are_right() -> None:
    device = bound()
    memory, _, host = _filled(device, 4 << 20)
    own = device.create_stream()
    stream = int(own.handle)
    assert f"cuStreamCreate {1}" in log()
    device.copies.queue(own, _scattered(memory, host, 50, 20000), TO_DEVICE)
    assert log() == [f"cuMemcpyBatchAsync 50 1 1 {stream}"]
    copies, kernel = _copies_with_a_kernel(device)
    assert kernel.wait_until_made(60), kernel.failure
    log()
    copies.queue(own, _scattered(memory, host, 450, 1000), TO_DEVICE)
    launches = [f"cuLaunchKernel {blocks} 256 {stream}" for blocks in (25, 25, 7)]
    assert log() == launches


def a_batch_on_the_legacy_stream_stays_in_its_order() -> None:
    device = bound()
    memory, _, host = _filled(device, 4 << 20)
    for number in (0, 1):
        main = device.borrow_stream(Engine(number))
        batch = _scattered(memory, host, 50, 20000)
        log()
        assert device.copies.queue(main, batch, TO_DEVICE) is Way.BATCH
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
        device.copies.queue(main, _scattered(memory, host, 50, 20000), TO_DEVICE)
    last = log()[-1].split()
    assert last[:2] == ["cuStreamWaitEvent", "0"]
    PRETENDED.pretend_fail(b"cuMemcpyBatchAsync", 0)
    assert device.copies.queue(main, _scattered(memory, host, 50, 20000), TO_DEVICE) is Way.BATCH


def without_the_batched_call_copies_go_one_by_one() -> None:
    device = bound()
    memory, _, host = _filled(device, 4 << 20)
    PRETENDED.pretend_fail(b"cuMemcpyBatchAsync", 801)
    own = device.create_stream()
    for _ in range(2):
        batch = _scattered(memory, host, 50, 20000)
        assert device.copies.queue(own, batch, TO_DEVICE) is Way.EACH
        assert _is_copied(batch)
    assert sum(line.startswith("cuMemcpyBatchAsync") for line in log()) == 1, "tried once"


def a_device_without_the_hosts_addresses_gets_single_copies_only() -> None:
    PRETENDED.pretend_attribute(91, 0)
    device = bound()
    memory, _, host = _filled(device, 4 << 20)
    own = device.create_stream()
    device.kernel.prepare()
    log()
    for size in (1000, 4000):  # addresses of the host's in a batch would be an illegal access
        batch = _scattered(memory, host, 450, size)
        assert device.copies.queue(own, batch, TO_DEVICE) is Way.EACH
        assert _is_copied(batch)
    assert {line.split()[0] for line in log()} == {"cuMemcpyAsync"}


def only_who_asks_by_memory_has_a_kernel_made() -> None:
    """An engine does, when it registers its pool; a copier asks by name."""
    first = cast(CudaDevice, device_by_uuid(b"PRETENDED-GPU-00"))
    first.bind()
    memory, _, host = _filled(first, 4 << 20)
    own = first.create_stream()
    small = _scattered(memory, host, 450, 1000)
    assert first.copies.queue(own, small, TO_DEVICE) is Way.BATCH
    assert _kernels_asked_for() == [False, False], "not even for many small pieces"
    assert cast(CudaDevice, device_of("cuda", memory)) is first
    assert _kernels_asked_for() == [True, False]


def _kernels_asked_for() -> list[bool]:
    kernels = [cast(CudaDevice, device).kernel for device in visible_devices()]
    return [cast(GatherKernel, kernel)._maker is not None for kernel in kernels]


def copies_stay_within_one_page_lock() -> None:
    device = bound()
    buffer = device.pinned_buffer(32 << 10)
    memory = device.allocate(32 << 10).address
    pages = batch_of([(memory + i * 4096, buffer.address + i * 4096, 4096) for i in range(8)])
    own = device.create_stream()
    halves = [device.pin(buffer.address + at, 16 << 10) for at in (0, 16 << 10)]
    log()
    device.copy(own, pages, TO_DEVICE)
    assert log() == [f"cuMemcpyAsync {16 << 10} {int(own.handle)}"] * 2
    for half in halves:
        half.close()
    log()
    device.copy(own, pages, TO_DEVICE)
    assert log() == [f"cuMemcpyAsync {32 << 10} {int(own.handle)}"]
