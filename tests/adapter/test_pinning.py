"""Extents are locked whole, with a pause after each; one that cannot be is said and counted."""

from __future__ import annotations

import logging
import mmap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.extents import MappedExtent
from adapter.journal import Journal
from adapter.pinning import LONGEST_PAUSE_S, Pinner
from protocol.device.interface import MemoryKind
from protocol.device.simulated.faults import Fault
from protocol.device.simulated.settings import Machine
from protocol.ids import ArenaId, Epoch
from tests.adapter.gpu import Gpu, simulated
from tests.adapter.responder import ExtentFile, geometry, namespace

MACHINE = Machine(pin_s_per_gib=500.0)
"""So slow that the small extents of a test take 20 ms or so."""


class Rig:
    """One mapped extent and a pinner."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.journal = Journal(logging.getLogger("kvkeep.test"))
        self.pinner = Pinner(gpu.seam, self.journal)
        self.pinner.enter()
        self.files: list[ExtentFile] = []

    def extent(self, number: int = 1) -> MappedExtent:
        file = ExtentFile(geometry(number, namespace()), ArenaId(b"a" * 16))
        self.files.append(file)
        mapping = mmap.mmap(file.fd, file.geometry.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        return MappedExtent(Epoch(b"e" * 16), file.geometry, mapping)

    def is_known(self, address: int) -> bool:
        place = self.gpu.device.place(address)
        return place is not None and place.kind is MemoryKind.HOST


def is_locked(extent: MappedExtent) -> bool:
    """Now; through a call, so that type checkers do not assume it unchanged."""
    return extent.is_pinned


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rig]:
    with simulated(monkeypatch, tmp_path, MACHINE) as gpu:
        rig = Rig(gpu)
        yield rig
        for file in rig.files:
            file.close()


def test_the_whole_mapping_is_locked_and_unlocked_with_its_end(rig: Rig) -> None:
    extent = rig.extent()
    address, last = extent.view.ctypes.data, extent.view.ctypes.data + extent.view.size - 1
    assert not is_locked(extent)
    assert rig.pinner.pin(extent)
    assert is_locked(extent)
    assert rig.is_known(address)
    assert rig.is_known(last)
    assert extent.close()
    assert not rig.is_known(address)
    counts = rig.journal.counters()
    assert counts["extents_pinned"] == 1
    assert counts["extent_pin_ms"] >= 10
    assert "extents_pinned_writable" not in counts


def test_the_pause_is_as_long_as_the_locking_took(rig: Rig) -> None:
    extent = rig.extent()
    begin_s = time.monotonic()
    assert rig.pinner.pin(extent)
    end_s = time.monotonic()
    took_s = MACHINE.pin_s_per_gib * extent.view.size / (1 << 30)
    assert took_s > 0.015
    assert rig.pinner.not_before_s >= begin_s + 2 * took_s
    assert rig.pinner.not_before_s <= end_s + min(end_s - begin_s, LONGEST_PAUSE_S)
    rig.gpu.faulty(Fault("pin", "", hang_s=LONGEST_PAUSE_S + 0.1))
    assert rig.pinner.pin(rig.extent(2))
    assert rig.pinner.not_before_s - time.monotonic() <= LONGEST_PAUSE_S
    extent.close()


def test_one_that_cannot_be_locked_is_said_once_with_what_to_do(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.gpu.faulty(Fault("pin", "cudaErrorMemoryAllocation"))
    extents = [rig.extent(number) for number in (1, 2)]
    for extent in extents:
        assert not rig.pinner.pin(extent)
        assert not extent.is_pinned
    assert rig.journal.counters() == {"extents_not_pinned": 2}
    lines = [line.getMessage() for line in caplog.records if "page-locked" in line.getMessage()]
    assert len(lines) == 1
    assert "cudaErrorMemoryAllocation" in lines[0]
    assert "ulimit -l" in lines[0]


def test_a_device_that_cannot_lock_read_only_is_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with simulated(monkeypatch, tmp_path, Machine(has_read_only_pins=False)) as gpu:
        rig = Rig(gpu)
        extent = rig.extent()
        assert rig.pinner.pin(extent)
        assert rig.journal.counters()["extents_pinned_writable"] == 1
        extent.close()
        rig.files[0].close()


def test_a_device_that_is_gone_ends_no_thread(rig: Rig) -> None:
    rig.gpu.faulty(Fault("bind", "cudaErrorNoDevice"))
    rig.pinner.enter()
    assert rig.journal.counters() == {"device_errors": 1}


def test_an_extent_that_is_forgotten_does_not_stay_locked(rig: Rig) -> None:
    extent = rig.extent()
    address = extent.view.ctypes.data
    assert rig.pinner.pin(extent)
    del extent
    assert not rig.is_known(address)


def test_giving_a_lock_up_is_paced_as_well(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    extent = rig.extent()
    assert rig.pinner.pin(extent)
    unpin = MappedExtent.unpin

    def slow(extent: MappedExtent) -> None:
        time.sleep(0.05)  # what the driver takes
        unpin(extent)

    monkeypatch.setattr(MappedExtent, "unpin", slow)
    begin_s = time.monotonic()
    rig.pinner.unpin(extent)
    assert not is_locked(extent)
    assert rig.pinner.keep_until_s == rig.pinner.not_before_s >= begin_s + 0.1
    assert rig.journal.counters()["extents_unpinned"] == 1


def test_a_lock_whose_end_fails_does_not_keep_the_mapping(rig: Rig) -> None:
    extent = rig.extent()
    assert rig.pinner.pin(extent)
    rig.gpu.faulty(Fault("unpin", "cudaErrorIllegalAddress"))
    assert extent.close()
    rig.gpu.faulty()
