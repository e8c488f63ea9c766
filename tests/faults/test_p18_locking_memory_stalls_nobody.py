"""P18: page-locking is done in small extents, one after the other, with pauses, by who reads them.

Each rank locks the extents of its own shard in its mapper's thread, and only what is locked is
offered; what cannot be locked never is. A lock ends before its mapping does, and never under a
copy. Against simulated devices; how long CUDA takes is for tests/gpu to say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.mapper import MapReport
from adapter.pinning import LONGEST_PAUSE_S
from protocol.device.interface import Direction, MemoryKind, batch_of
from protocol.device.simulated.faults import Fault
from protocol.device.simulated.settings import Machine
from protocol.ids import Epoch
from tests.adapter.devicearena import simulated_driver
from tests.adapter.devicehost import DeviceEngineRig
from tests.adapter.enginerig import EngineRig, launched, write_model
from tests.adapter.gpu import Gpu, simulated
from tests.adapter.hostlike import tokens
from tests.adapter.responder import ExtentFile, geometry, namespace, until
from tests.adapter.test_mapper import ARENA, ORIGIN, Bench

MACHINE = Machine(pin_s_per_gib=1000.0)
"""An extent of these tests takes 30 to 50 ms to lock, as one of some 100 MiB on a real device."""


@dataclass
class Span:
    """One call of ``pin``, on the monotonic clock."""

    address: int
    begin_s: float
    end_s: float


class Watched:
    """A simulated device that keeps what was locked when, and by which thread."""

    def __init__(self, gpu: Gpu) -> None:
        self.device = gpu.device
        self.spans: list[Span] = []
        self.threads: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def pin(self, address: int, num_bytes: int) -> Any:
        self.threads.add(threading.current_thread().name)
        begin_s = time.monotonic()
        try:
            return self.device.pin(address, num_bytes)
        finally:
            self.spans.append(Span(address, begin_s, time.monotonic()))


class Rig:
    """A mapper that locks for a device, and extent files."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.watched = Watched(gpu)
        self.bench = Bench(self.watched)
        self.files: dict[int, ExtentFile] = {}

    def give(self, *numbers: int) -> None:
        for number in numbers:
            self.files[number] = ExtentFile(geometry(number, namespace()), ARENA, seed=number)
        for number in numbers:
            self.bench.map(self.files[number])

    def reports(self, count: int) -> list[MapReport]:
        return [self.bench.next_report() for _ in range(count)]

    def address(self, number: int) -> int:
        extent = self.bench.table.get(number, ORIGIN.epoch)
        assert extent is not None
        return int(extent.view.ctypes.data)

    def is_locked(self, address: int) -> bool:
        place = self.gpu.device.place(address)
        return place is not None and place.kind is MemoryKind.HOST


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rig]:
    with simulated(monkeypatch, tmp_path, MACHINE) as gpu:
        rig = Rig(gpu)
        yield rig
        gpu.faulty()
        rig.bench.table.take_all()
        rig.bench.mapper.stop()
        assert rig.bench.mapper.join(5)
        for file in rig.files.values():
            file.close()


def test_extents_are_locked_one_by_one_in_the_order_given_with_pauses(rig: Rig) -> None:
    order = [4, 2, 7, 1]  # as the server gives them: most used first
    rig.give(*order)
    reports = rig.reports(len(order))
    assert [report.extent for report in reports] == order
    spans = rig.watched.spans
    assert [span.address for span in spans] == [rig.address(number) for number in order]
    assert rig.watched.threads == {"kvkeep-mapper"}  # no thread with duties
    for before, after in pairwise(spans):
        took_s = before.end_s - before.begin_s
        assert took_s >= 0.01
        assert after.begin_s - before.end_s >= 0.9 * min(took_s, LONGEST_PAUSE_S)


def test_nothing_is_reported_that_is_not_locked(rig: Rig) -> None:
    rig.gpu.faulty(Fault("pin", "", hang_s=0.3))
    rig.give(1)
    until(lambda: "kvkeep-mapper" in rig.watched.threads)
    assert rig.bench.mapper.take_reports() == []
    assert rig.bench.table.get(1, ORIGIN.epoch) is None
    assert rig.bench.mapper.is_mapping(ORIGIN.epoch)
    (report,) = rig.reports(1)
    assert report == MapReport(ORIGIN, 1, True)
    assert rig.is_locked(rig.address(1))


def test_what_cannot_be_locked_is_never_reported_and_said_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.gpu.faulty(Fault("pin", "cudaErrorMemoryAllocation", after=1, times=2))
    rig.give(1, 2, 3, 4)
    assert [report.extent for report in rig.reports(2)] == [1, 4]
    assert rig.bench.table.get(2, ORIGIN.epoch) is None
    assert rig.bench.journal.counters()["extents_not_pinned"] == 2
    assert sum("ulimit -l" in line.getMessage() for line in caplog.records) == 1
    rig.bench.mapper.unmap(ORIGIN, 2)  # the server wants it back, and is told that it has it
    assert rig.reports(1) == [MapReport(ORIGIN, 2, False)]


def test_an_extent_taken_back_in_the_pause_is_not_locked_in_vain(rig: Rig) -> None:
    rig.gpu.faulty(Fault("pin", "", hang_s=0.2, times=1))
    rig.give(1, 2)
    rig.reports(1)
    rig.bench.mapper.unmap(ORIGIN, 2)
    assert rig.reports(1) == [MapReport(ORIGIN, 2, False)]
    assert len(rig.watched.spans) == 1


def test_a_pause_holds_up_no_unmapping_and_no_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapter.pinning.LONGEST_PAUSE_S", 60.0)
    rig.gpu.faulty(Fault("pin", "", hang_s=1.0, times=1))
    rig.give(1)
    rig.reports(1)
    begin_s = time.monotonic()  # the pause has begun
    rig.bench.mapper.unmap(ORIGIN, 1)
    rig.reports(1)
    rig.give(2)
    rig.bench.mapper.stop()
    assert rig.bench.mapper.join(5)
    assert time.monotonic() - begin_s < 0.9


def test_a_lock_ends_before_its_mapping_and_never_under_a_copy(rig: Rig) -> None:
    rig.give(1)
    rig.reports(1)
    address, device = rig.address(1), rig.gpu.device
    start = rig.files[1].geometry.slot_offset_bytes(0)
    payload = rig.files[1].payloads[0]
    target = rig.gpu.malloc(payload.size)
    may_run = threading.Event()
    stream = device.create_stream()
    with rig.bench.table.hold(ORIGIN.epoch, [1]):
        stream.enqueue(lambda: may_run.wait(10))  # a forward that is not done yet
        batch = batch_of([(target, address + start, payload.size)])
        device.copy(stream, batch, Direction.TO_DEVICE)
        event = device.record(stream)
        rig.bench.mapper.unmap(ORIGIN, 1)
        rig.bench.mapper.unmap(ORIGIN, 99)
        assert rig.reports(1) == [MapReport(ORIGIN, 99, False)]  # it has looked at extent 1, too
        assert rig.is_locked(address)
        may_run.set()
        until(event.query)
    assert np.array_equal(rig.gpu.content(target, payload.size), payload)
    assert rig.reports(1) == [MapReport(ORIGIN, 1, False)]
    assert not rig.is_locked(address)
    assert rig.bench.journal.counters()["extents_unpinned"] == 1


def test_a_driver_that_takes_long_to_unlock_still_unlocks_first(rig: Rig) -> None:
    rig.give(1)
    rig.reports(1)
    address = rig.address(1)
    extent = rig.bench.table.get(1, ORIGIN.epoch)
    assert extent is not None
    rig.gpu.faulty(Fault("unpin", "", hang_s=0.3))
    rig.bench.mapper.unmap(ORIGIN, 1)
    time.sleep(0.1)  # while it hangs, nothing of the mapping is gone
    assert extent.view.size == extent.geometry.file_bytes
    assert rig.bench.mapper.take_reports() == []
    del extent
    assert rig.reports(1) == [MapReport(ORIGIN, 1, False)]
    assert not rig.is_locked(address)


def test_after_a_restart_locking_is_paced_again(rig: Rig) -> None:
    """The next server's extents are other mappings: locked anew, in its order, paced the same."""
    rig.give(1, 2)
    rig.reports(2)
    next_one = replace(ORIGIN, epoch=Epoch(b"f" * 16))
    rig.bench.table.set_current(next_one.epoch)
    for number in (2, 1):
        rig.bench.map(rig.files[number], next_one)
    reports = rig.reports(2)
    assert [(report.origin.epoch, report.extent) for report in reports] == [
        (next_one.epoch, 2),
        (next_one.epoch, 1),
    ]
    third, fourth = rig.watched.spans[2:]
    took_s = third.end_s - third.begin_s
    assert fourth.begin_s - third.end_s >= 0.9 * min(took_s, LONGEST_PAUSE_S)


def test_an_engine_that_can_lock_nothing_saves_and_is_offered_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    model, prompt = write_model(tmp_path / "m"), tokens(22)
    with simulated_driver(tmp_path / "cuda", monkeypatch) as driver, launched() as server:
        driver.faults.inject(Fault("pin", "cudaErrorMemoryAllocation"))
        rig = DeviceEngineRig(server.url, model, driver)
        rig.register()
        for _ in range(2):
            assert rig.run_saved(prompt).offered == 0
        assert rig.worker.counters()["extents_not_pinned"] >= 1
        assert rig.stats()["extents_unmapped"] >= 1
        other = EngineRig(server.url, model)  # in host memory: what was saved is there
        other.register()
        assert other.run_saved(prompt).offered == 20
        other.close()
        rig.close()
