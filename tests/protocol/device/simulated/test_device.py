import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from protocol.device.interface import DeviceError, Direction, MemoryKind, batch_of
from protocol.device.simulated import driver, ledger, settings
from protocol.device.simulated.device import SimulatedDevice
from protocol.device.simulated.faults import Fault, plant
from tests.protocol.device.moved import content, pages, wait, wait_for


def test_a_round_trip_is_exact_under_delays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.DELAY_US, "300")
    device = driver.current().device(1)  # type: ignore[union-attr]
    pool = device.malloc(1 << 20)
    there, back = device.pinned_buffer(1 << 20), device.pinned_buffer(1 << 20)
    there.view[:] = np.random.default_rng(1).integers(0, 255, 1 << 20, dtype=np.uint8)
    up, down = device.create_stream(), device.create_stream()
    order = np.random.default_rng(2).permutation(256).tolist()
    copies = [(pool + 4096 * i, there.address + 4096 * j, 4096) for i, j in enumerate(order)]
    device.copy(up, batch_of(copies), Direction.TO_DEVICE)
    device.wait(down, device.record(up))
    copies = [(back.address + 4096 * j, pool + 4096 * i, 4096) for i, j in enumerate(order)]
    device.copy(down, batch_of(copies), Direction.TO_HOST)
    wait(device.record(down))
    assert (back.view == there.view).all()
    assert (content(pool).reshape(256, -1) == there.view.reshape(256, -1)[order]).all()
    up.close()
    down.close()


def test_a_copy_reads_its_source_when_it_runs(device: SimulatedDevice) -> None:
    pool, buffer = device.malloc(8192), device.pinned_buffer(4096)
    stream, gate = device.create_stream(), threading.Event()
    buffer.view[:] = 1
    stream.enqueue(lambda: gate.wait(10))
    device.copy(stream, batch_of([(pool, buffer.address, 4096)]), Direction.TO_DEVICE)
    event = device.record(stream)
    buffer.view[:] = 2  # too early, and so it must show
    assert not event.query()
    gate.set()
    wait(event)
    assert (content(pool)[:4096] == 2).all()
    assert not content(pool)[4096:].any()
    stream.close()


def test_a_missing_wait_shows(device: SimulatedDevice) -> None:
    pool, buffer = device.malloc(4096), device.pinned_buffer(4096)
    engine, own, gate = device.create_stream(), device.create_stream(), threading.Event()
    engine.enqueue(lambda: gate.wait(10))
    engine.enqueue(lambda: content(pool).fill(9))  # a forward that still uses the page
    buffer.view[:] = 5
    batch = batch_of([(pool, buffer.address, 4096)])
    device.copy(own, batch, Direction.TO_DEVICE)
    wait(device.record(own))
    gate.set()
    wait(device.record(engine))
    assert (content(pool) == 9).all()
    lent = device.borrow_stream(engine)
    device.wait(own, device.record(lent))
    device.copy(own, batch, Direction.TO_DEVICE)
    wait(device.record(own))
    assert (content(pool) == 5).all()
    lent.close()
    device.copy(device.borrow_stream(engine), batch, Direction.TO_DEVICE)
    engine.synchronize(10)
    engine.close()
    own.close()


def test_streams_of_the_engine_are_taken_by_number(device: SimulatedDevice) -> None:
    class Torch:
        def __init__(self, number: int) -> None:
            self.cuda_stream = number

    stream = device.create_stream("m")
    lent = device.borrow_stream(Torch(stream.cuda_stream))
    wait(device.record(lent))
    with pytest.raises(DeviceError):
        device.borrow_stream(Torch(1))
    with pytest.raises(DeviceError):
        device.borrow_stream(object())
    stream.close()


def test_host_memory_must_be_page_locked_and_only_read(device: SimulatedDevice) -> None:
    pool, memory, stream = device.malloc(8192), pages(8192), device.create_stream()
    address = int(memory.ctypes.data)
    load = batch_of([(pool, address, 8192)])
    save = batch_of([(address, pool, 8192)])
    with pytest.raises(DeviceError, match="not page-locked"):
        device.copy(stream, load, Direction.TO_DEVICE)
    pinned = device.pin(address, 8192)
    assert pinned.is_read_only
    device.copy(stream, load, Direction.TO_DEVICE)
    with pytest.raises(DeviceError, match="reading only"):
        device.copy(stream, save, Direction.TO_HOST)
    with pytest.raises(DeviceError, match="AlreadyRegistered"):
        device.pin(address + 4096, 4096)
    place = device.place(address + 5)
    assert place is not None
    assert (place.kind, place.device_uuid, place.num_bytes) == (MemoryKind.HOST, b"", 8192)
    wait(device.record(stream))
    pinned.close()
    pinned.close()
    assert device.place(address) is None
    ring = device.pinned_over(address, 8192)
    assert not ring.is_read_only
    device.copy(stream, save, Direction.TO_HOST)
    wait(device.record(stream))
    ring.close()
    for wrong in ((address + 1, 4096), (address, 100), (address, 0)):
        with pytest.raises(DeviceError, match="part of a page"):
            device.pin(*wrong)
    stream.close()


def test_unpinning_under_a_copy_is_an_illegal_access(device: SimulatedDevice) -> None:
    pool, memory, stream = device.malloc(4096), pages(4096), device.create_stream()
    pinned, gate = device.pin(int(memory.ctypes.data), 4096), threading.Event()
    stream.enqueue(lambda: gate.wait(10))
    batch = batch_of([(pool, int(memory.ctypes.data), 4096)])
    device.copy(stream, batch, Direction.TO_DEVICE)
    event = device.record(stream)
    pinned.close()
    gate.set()
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress") as raised:
        wait(event)
    assert raised.value.is_sticky
    with pytest.raises(DeviceError, match="lost device"):
        device.create_stream()
    stream.close()


def test_a_thread_must_have_bound_the_device(driven: driver.Driver) -> None:
    first, second = driven.device(0), driven.device(1)
    pool = first.malloc(4096)
    stream, failures = first.create_stream(), list[str]()
    event = first.record(stream)

    def unbound() -> None:
        batch = batch_of([(pool, pool + 2048, 64)])
        acts: tuple[Callable[[], object], ...] = (
            lambda: first.record(stream),
            lambda: first.wait(stream, event),
            lambda: first.copy(stream, batch, Direction.TO_DEVICE),
            lambda: first.export(pool),
            first.create_stream,
        )
        for binds in (False, True):
            if binds:
                second.bind()
            for act in acts:
                with pytest.raises(DeviceError, match="has not bound"):
                    act()
                failures.append("seen")
        wait(stream.record_event())  # the engine's own objects know their device

    thread = threading.Thread(target=unbound)
    thread.start()
    thread.join(10)
    assert len(failures) == 10
    second.bind()
    with pytest.raises(DeviceError, match="another device's stream"):
        second.record(stream)
    stream.close()


def test_a_sticky_error_loses_the_device_and_no_other(driven: driver.Driver) -> None:
    first, second = driven.device(0), driven.device(1)
    first.bind()
    stream = first.create_stream()
    event = first.record(stream)
    wait(event)
    driven.faults.inject(Fault("copy", "cudaErrorIllegalAddress", is_sticky=True, times=1))
    pool, buffer = first.malloc(4096), first.pinned_buffer(4096)
    batch = batch_of([(pool, buffer.address, 8)])
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress"):
        first.copy(stream, batch, Direction.TO_DEVICE)
    for call in (first.memory, first.bind, event.query, buffer.close):
        with pytest.raises(DeviceError, match="cudaErrorIllegalAddress") as raised:
            call()
        assert raised.value.is_sticky
    assert first.place(buffer.address) is None
    second.bind()
    wait(second.record(second.create_stream()))


def test_a_copy_that_fails_while_it_runs_is_told_by_its_event(
    device: SimulatedDevice, folder: Path
) -> None:
    pool, buffer, stream = device.malloc(1 << 20), device.pinned_buffer(1 << 20), None
    stream = device.create_stream()
    plant(folder, Fault("run", "cudaErrorECCUncorrectable", is_sticky=True, after=3))
    device.copy(stream, batch_of([(pool, buffer.address, 1 << 20)]), Direction.TO_DEVICE)
    with pytest.raises(DeviceError, match="cudaErrorECCUncorrectable"):
        wait(device.record(stream))


def test_a_wedged_call_holds_up_its_thread_alone(device: SimulatedDevice, folder: Path) -> None:
    plant(folder, Fault("open", "", hang_s=60.0))

    def open_it() -> None:
        device.bind()
        with pytest.raises(DeviceError):
            device.open(bytes(64))

    hung = threading.Thread(target=open_it, daemon=True)
    hung.start()
    begun = time.monotonic()
    stream = device.create_stream()
    wait(device.record(stream))
    assert time.monotonic() - begun < 5
    assert hung.is_alive()
    plant(folder)
    hung.join(10)
    assert not hung.is_alive()


def test_memory_is_told_apart_by_kind_and_only_one_kind_has_a_handle(
    device: SimulatedDevice,
) -> None:
    for kind in (MemoryKind.DEVICE, MemoryKind.VIRTUAL, MemoryKind.MANAGED):
        address = device.malloc(8192, kind)
        place = device.place(address + 8191)
        assert place is not None
        assert (place.kind, place.base, place.num_bytes) == (kind, address, 8192)
        assert place.device_uuid == device.uuid
        if kind is MemoryKind.DEVICE:
            exported = device.export(address + 4097)
            assert (exported.base, exported.num_bytes) == (address, 8192)
            assert (len(exported.handle), exported.device_uuid) == (64, device.uuid)
        else:
            with pytest.raises(DeviceError, match=kind.value):
                device.export(address)
    with pytest.raises(DeviceError, match="no allocation"):
        device.export(8)
    assert device.place(8) is None


def test_what_is_taken_is_counted_and_given_back(folder: Path) -> None:
    settings.write_machine(folder, settings.Machine(1, total_bytes=1 << 20, context_bytes=4096))
    device = driver.current().device(0)  # type: ignore[union-attr]
    assert device.memory().free_bytes == 1 << 20
    device.bind()
    pool = device.malloc(1 << 16)
    buffer = device.allocate(1 << 12)
    taken = (1 << 16) + (1 << 12) + 4096
    assert device.memory().free_bytes == (1 << 20) - taken
    with pytest.raises(DeviceError, match="cudaErrorMemoryAllocation"):
        device.malloc(1 << 20)
    buffer.close()
    buffer.close()
    device.free(pool)
    device.free(pool)
    assert device.memory().free_bytes == (1 << 20) - 4096
    assert device.memory().total_bytes == 1 << 20


def test_freed_memory_is_poisoned_and_a_copy_to_it_illegal(
    device: SimulatedDevice, folder: Path
) -> None:
    pool, buffer, stream = device.malloc(4096), device.pinned_buffer(4096), device.create_stream()
    seen, gate = content(pool), threading.Event()
    seen[:] = 3
    stream.enqueue(lambda: gate.wait(10))
    device.copy(stream, batch_of([(buffer.address, pool, 4096)]), Direction.TO_HOST)
    event = device.record(stream)
    device.free(pool)
    assert (seen == driver.POISON).all()
    assert ledger.census(folder, 0) == ledger.Census(0, 0, 1)  # whoever still looks at it
    gate.set()
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress"):
        wait(event)


def test_devices_that_cannot_see_each_other(folder: Path) -> None:
    settings.write_machine(folder, settings.Machine(3, refused_peers=((0, 1),)))
    made = driver.current()
    assert made is not None
    far, near = made.device(1).malloc(4096), made.device(2).malloc(4096)
    device = made.device(0)
    pool, stream = device.malloc(4096), device.create_stream()
    device.copy(stream, batch_of([(pool, near, 4096)]), Direction.TO_DEVICE)
    with pytest.raises(DeviceError, match="out of reach"):
        device.copy(stream, batch_of([(pool, far, 4096)]), Direction.TO_DEVICE)
    wait(device.record(stream))


def test_pinning_takes_its_time(folder: Path) -> None:
    machine = settings.Machine(pin_s_per_gib=0.1 * (1 << 30) / 4096, has_read_only_pins=False)
    settings.write_machine(folder, machine)
    device = driver.current().device(0)  # type: ignore[union-attr]
    device.bind()
    memory, begun = pages(4096), time.monotonic()
    pinned = device.pin(int(memory.ctypes.data), 4096)
    assert time.monotonic() - begun >= 0.1
    assert not pinned.is_read_only
    pinned.close()


def test_nothing_is_left_open(driven: driver.Driver) -> None:
    device = driven.device(0)
    device.bind()
    device.free(device.malloc(4096))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        pool, buffer, stream = device.malloc(8192), device.pinned_buffer(4096), None
        stream = device.create_stream()
        device.copy(stream, batch_of([(pool, buffer.address, 8)]), Direction.TO_DEVICE)
        wait(device.record(stream))
        stream.close()
        buffer.close()
        device.free(pool)
    wait_for(lambda: len(os.listdir("/proc/self/fd")) == before)
    assert len(driven.memory.ranges()) == 0
