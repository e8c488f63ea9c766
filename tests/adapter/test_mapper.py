"""Mapping, populating, refusing and unmapping real files, and the thread's freedom from the GIL."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adapter.extents import ExtentTable, MappedExtent
from adapter.journal import Journal
from adapter.mapper import Mapper, MapReport, Origin
from protocol.device.interface import Device
from protocol.device.simulated.faults import Fault
from protocol.extents import ExtentGeometry, pack_header
from protocol.ids import ArenaId, Epoch, ExtentId, Fingerprint, SessionId
from protocol.namespace import fingerprint
from tests.adapter.gpu import simulated
from tests.adapter.responder import ExtentFile, geometry, namespace, until

ARENA = ArenaId(b"a" * 16)
ORIGIN = Origin(Epoch(b"e" * 16), ARENA, SessionId(1), Fingerprint(fingerprint(namespace())))


class Bench:
    """A running mapper and what it reported."""

    def __init__(self, device: Device | None = None) -> None:
        self.journal = Journal(logging.getLogger("kvkeep.test"))
        self.told = threading.Event()
        self.table = ExtentTable(self._kick)
        self.mapper = Mapper(self.table, self.journal, self.told.set, device)
        self.mapper.start()
        self.reports: list[MapReport] = []

    def _kick(self) -> None:
        self.mapper.kick()

    def next_report(self) -> MapReport:
        def take() -> bool:
            self.reports += self.mapper.take_reports()
            return bool(self.reports)

        until(take)
        return self.reports.pop(0)

    def map(self, file: ExtentFile, origin: Origin = ORIGIN) -> None:
        self.mapper.map(origin, file.given(1), file.read_only_fd())


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.table.take_all()
    bench.mapper.stop()
    assert bench.mapper.join(5)


@pytest.fixture
def file() -> Iterator[ExtentFile]:
    file = ExtentFile(geometry(1, namespace()), ARENA)
    yield file
    file.close()


def num_mapped(file: ExtentFile) -> int:
    inode = str(os.fstat(file.fd).st_ino)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum(line.split()[4] == inode for line in maps)


def test_maps_reports_and_unmaps_and_closes_what_it_was_given(
    bench: Bench, file: ExtentFile
) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    bench.map(file)
    assert bench.next_report() == MapReport(ORIGIN, 1, True)
    assert num_mapped(file) == 1
    with bench.table.hold(ORIGIN.epoch, [1]) as extents:
        start = file.geometry.slot_offset_bytes(0)
        view = extents[1].view[start : start + file.geometry.payload_bytes]
        assert np.array_equal(view, file.payloads[0])
        del view
    bench.mapper.unmap(ORIGIN, 1)
    assert bench.next_report() == MapReport(ORIGIN, 1, False)
    assert num_mapped(file) == 0
    assert len(os.listdir("/proc/self/fd")) <= fds


def test_unmapping_waits_for_the_load_that_uses_it(bench: Bench, file: ExtentFile) -> None:
    bench.map(file)
    bench.next_report()
    with bench.table.hold(ORIGIN.epoch, [1]) as extents:
        bench.mapper.unmap(ORIGIN, 1)
        bench.mapper.unmap(ORIGIN, 9)
        assert bench.next_report() == MapReport(ORIGIN, 9, False)
        assert extents[1].generation_of(0) == 1
        assert bench.mapper.take_reports() == []
    assert bench.next_report() == MapReport(ORIGIN, 1, False)


def test_unmapping_waits_for_arrays_too_and_does_not_spin(bench: Bench, file: ExtentFile) -> None:
    bench.map(file)
    bench.next_report()
    extent = bench.table.get(1, ORIGIN.epoch)
    assert extent is not None
    kept = extent.view[:4]
    bench.mapper.unmap(ORIGIN, 1)
    until(lambda: extent.view.size == 0)
    used_s = time.process_time()
    assert not bench.told.wait(0) or bench.mapper.take_reports() == []
    assert kept.tobytes() == b"KVKE"
    until(lambda: time.process_time() - used_s < 1.0)
    del kept
    assert bench.next_report() == MapReport(ORIGIN, 1, False)


def test_taken_while_it_waits_to_be_mapped(bench: Bench, file: ExtentFile) -> None:
    with bench.mapper._wanted:  # the thread cannot begin before both are there
        bench.mapper._to_map.append((ORIGIN, file.given(1), file.read_only_fd()))
        bench.mapper._to_unmap[ORIGIN.epoch, 1] = ORIGIN
        bench.mapper._wanted.notify_all()
    assert bench.next_report() == MapReport(ORIGIN, 1, False)
    assert bench.table.get(1, ORIGIN.epoch) is None
    assert num_mapped(file) == 0


@pytest.mark.parametrize("case", ["header", "arena", "namespace", "size", "short", "empty"])
def test_files_that_are_not_what_was_announced_are_not_mapped(
    bench: Bench, file: ExtentFile, case: str
) -> None:
    origin, given = ORIGIN, file.given(1)
    if case == "header":
        os.pwrite(file.fd, b"\x01", 40)
    elif case == "arena":
        origin = Origin(ORIGIN.epoch, ArenaId(b"b" * 16), ORIGIN.session, ORIGIN.fingerprint)
    elif case == "namespace":
        origin = Origin(ORIGIN.epoch, ARENA, ORIGIN.session, Fingerprint(b"x" * 16))
    elif case == "size":
        given = ExtentFile(geometry(1, namespace(), num_slots=5), ARENA).given(1)
    elif case == "short":
        os.ftruncate(file.fd, 8192)
    else:
        os.ftruncate(file.fd, 0)
    fds = len(os.listdir("/proc/self/fd"))
    bench.mapper.map(origin, given, file.read_only_fd())
    until(lambda: bench.journal.counters().get("extents_not_mapped"))
    until(lambda: len(os.listdir("/proc/self/fd")) <= fds)
    assert len(bench.table) == 0
    assert num_mapped(file) == 0


def test_stop_drops_what_is_queued(bench: Bench, file: ExtentFile) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    with bench.mapper._wanted:
        for _ in range(20):
            bench.mapper._to_map.append((ORIGIN, file.given(1), file.read_only_fd()))
        bench.mapper._stopping = True
        bench.mapper._wanted.notify_all()
    assert bench.mapper.join(5)
    assert len(os.listdir("/proc/self/fd")) <= fds


def big_file(number: int, num_bytes: int) -> ExtentFile:
    payload = namespace().slot_payload_bytes(0)
    cut = ExtentGeometry(
        ExtentId(number), ORIGIN.fingerprint, 0, 1, payload, payload, num_bytes // payload
    )
    file = ExtentFile.__new__(ExtentFile)
    file.geometry = cut
    file.fd = os.memfd_create("extent", os.MFD_CLOEXEC)
    os.posix_fallocate(file.fd, 0, cut.file_bytes)
    os.pwrite(file.fd, pack_header(cut, ARENA), 0)
    return file


def longest_pause_s(bench: Bench, number: int) -> float:
    """Maps and unmaps half a GiB; the longest time for which this thread could not run."""
    file = big_file(number, 512 << 20)
    longest_s = 0.0
    for is_mapped in (True, False):
        if is_mapped:
            bench.map(file)
        else:
            bench.mapper.unmap(ORIGIN, number)
        while not (reports := bench.mapper.take_reports()):
            before_s = time.perf_counter()
            time.sleep(0.0005)
            longest_s = max(longest_s, time.perf_counter() - before_s)
        assert reports[0].is_mapped == is_mapped
    file.close()
    return longest_s


def test_other_threads_run_while_a_large_extent_is_populated_and_unmapped(bench: Bench) -> None:
    # Populating this much takes 150 ms and more; held GIL would show as a pause of that length in
    # every attempt, other load on the machine in some.
    pauses = [longest_pause_s(bench, 1)]
    while min(pauses) >= 0.08 and len(pauses) < 4:
        pauses.append(longest_pause_s(bench, 1 + len(pauses)))
    assert min(pauses) < 0.08, pauses


def resident_bytes(name: str) -> int:
    with open("/proc/self/smaps", encoding="utf-8") as maps:
        text = maps.read()
    _, _, entry = text.partition(name)
    return int(entry.partition("Rss:")[2].split()[0]) << 10 if entry else 0


def test_what_a_stay_before_had_mapped_meanwhile_is_mapped_and_locked_once(
    file: ExtentFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Locking is paced, so a stay may end, and the next one be given the same, long before its turn.
    again = replace(ORIGIN, session=SessionId(2))
    with simulated(monkeypatch, tmp_path) as gpu:
        bench = Bench(gpu.seam)
        with bench.mapper._wanted:
            for origin in (ORIGIN, again):
                bench.map(file, origin)
        assert bench.next_report() == MapReport(ORIGIN, 1, True)
        first = bench.table.get(1, ORIGIN.epoch)
        assert bench.next_report() == MapReport(again, 1, True)
        assert bench.table.get(1, ORIGIN.epoch) is first
        counts = bench.journal.counters()
        assert (counts["extents_mapped"], counts["extents_pinned"]) == (1, 1)
        bench.mapper.unmap(again, 1)
        assert bench.next_report() == MapReport(again, 1, False)
        bench.mapper.stop()
        assert bench.mapper.join(5)


def test_a_lock_is_given_up_in_its_turn(
    file: ExtentFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated(monkeypatch, tmp_path) as gpu:
        bench = Bench(gpu.seam)
        bench.map(file)
        assert bench.next_report() == MapReport(ORIGIN, 1, True)
        assert bench.mapper._pinner is not None
        bench.mapper._pinner.keep_until_s = turn_s = time.monotonic() + 0.5
        bench.mapper.unmap(ORIGIN, 1)
        assert bench.next_report() == MapReport(ORIGIN, 1, False)
        assert time.monotonic() >= turn_s
        assert bench.journal.counters()["extents_unpinned"] == 1
        bench.mapper.stop()
        assert bench.mapper.join(5)


def test_what_could_not_be_locked_is_unmapped_in_steps_too(
    file: ExtentFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python unmaps with the GIL held: a whole gigabyte of page table entries takes long."""
    left: list[int] = []
    close, others = MappedExtent.close, resident_bytes("memfd:extent")

    def look_and_close(extent: MappedExtent) -> bool:
        left.append(resident_bytes("memfd:extent") - others)
        return close(extent)

    monkeypatch.setattr(MappedExtent, "close", look_and_close)
    with simulated(monkeypatch, tmp_path) as gpu:
        gpu.faulty(Fault("pin", "cudaErrorMemoryAllocation"))
        bench = Bench(gpu.seam)
        bench.map(file)
        until(lambda: num_mapped(file) == 0 and left)
        assert left == [0]
        assert bench.journal.counters() == {"extents_not_pinned": 1}
        bench.mapper.stop()
        assert bench.mapper.join(5)


def test_a_fault_of_its_own_does_not_end_the_thread(
    bench: Bench, file: ExtentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(bench.mapper, "_open", fail)
        bench.map(file)
        until(lambda: bench.journal.counters().get("mapper_faults"))
    bench.map(file)
    assert bench.next_report().is_mapped
