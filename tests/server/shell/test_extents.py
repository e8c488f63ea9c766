"""Extent files: whole or not there, read-only to the outside, records void before they change."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.extents import (
    RECORD_DTYPE,
    RECORDS_OFFSET_BYTES,
    ExtentGeometry,
    checksums,
    unpack_header,
)
from protocol.ids import ArenaId
from protocol.namespace import fingerprint
from server import numa
from server.core.effects import DropOwed, KeepOwed, TierId
from server.shell import extents, namespacefiles, owedfiles
from server.shell.descriptors import Descriptor
from server.shell.extents import Allocator, ExtentFile
from server.shell.reports import ExtentCreated, OwedKept
from server.tierspec import parse_all
from tests.server.shell.geometry import make_geometry
from tests.server.shell.reporting import Reports
from tests.server.shell.test_namespacefiles import NAMESPACE
from tests.wire.process import wait_until

ARENA = ArenaId(b"a" * 16)


def file_of(report: ExtentCreated) -> ExtentFile:
    assert report.error is None
    assert report.file is not None
    return report.file


def on_disk(file: ExtentFile) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    raw = os.pread(file.readable.fd, file.geometry.num_slots * 128, RECORDS_OFFSET_BYTES)
    return np.frombuffer(raw, dtype=RECORD_DTYPE)


def test_a_new_file_is_headed_allocated_void_and_read_only(shm_dir: Path) -> None:
    geometry = make_geometry()
    file = extents.create(str(shm_dir), geometry, ARENA)
    path = Path(file.path)
    assert unpack_header(path.read_bytes()[:128]) == (geometry, ARENA)
    found = path.stat()
    assert found.st_size == geometry.file_bytes
    assert found.st_blocks * 512 >= geometry.file_bytes
    assert stat.S_IMODE(found.st_mode) == 0o400
    assert not on_disk(file)["checksum"].any()
    with pytest.raises(PermissionError):
        mmap.mmap(file.readable.fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    mmap.mmap(file.writable.fd, 4096).close()
    file.close()
    assert not file.writable.is_open()
    assert not file.readable.is_open()


HERE = frozenset(os.sched_getaffinity(0))
NODES = {0: HERE, 1: frozenset({max(HERE) + 1000})}
"""As if there were a second node, which the kernel refuses then."""


@pytest.mark.parametrize(
    ("wanted", "nodes", "kept", "is_far"),
    [
        (0, NODES, 0, False),
        (1, NODES, 1, True),
        (7, NODES, None, False),
        (None, NODES, None, False),
        (0, {0: HERE}, None, False),
        (0, {}, None, False),
    ],
)
def test_a_file_lies_near_and_says_where(
    shm_dir: Path,
    reports: Reports,
    wanted: int | None,
    nodes: dict[int, frozenset[int]],
    kept: int | None,
    is_far: bool,
) -> None:
    if len(nodes) > 1 and not numa.nodes_of():
        pytest.skip("this kernel knows nothing of nodes")
    allocator = Allocator(str(shm_dir), ARENA, reports.reporter, nodes=nodes)
    allocator.start()
    allocator.create(make_geometry(1), wanted)
    file = file_of(reports.wait_for(ExtentCreated))
    assert file.wanted_node == kept
    assert file.numa_node == (0 if len(nodes) > 1 else None)
    assert file.is_far == is_far
    file.close()
    assert allocator.stop(5)


def test_what_asks_the_kernel_for_a_place_is_there_while_pages_are_made(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy holds for the allocation and not longer."""
    if numa.policy() is None:
        pytest.skip("memory policies are forbidden here")
    seen: list[int | None] = []
    real = os.posix_fallocate

    def fallocate(fd: int, offset: int, length: int) -> None:
        seen.append(numa.policy())
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    extents.create(str(shm_dir), make_geometry(1), ARENA, 0, NODES).close()
    extents.create(str(shm_dir), make_geometry(2), ARENA, None, NODES).close()
    assert seen == [1, 0]
    assert numa.policy() == 0


def test_an_id_is_not_used_twice(shm_dir: Path) -> None:
    file = extents.create(str(shm_dir), make_geometry(), ARENA)
    before = Path(file.path).read_bytes()
    with pytest.raises(FileExistsError):
        extents.create(str(shm_dir), make_geometry(), ARENA)
    assert Path(file.path).read_bytes() == before
    file.close()


def test_records_are_written_and_voided_slot_by_slot(shm_dir: Path) -> None:
    file = extents.create(str(shm_dir), make_geometry(), ARENA)
    slots = np.array([5, 1, 9], dtype=np.uint32)
    rows = np.zeros(3, dtype=RECORD_DTYPE)
    rows["key"] = [np.void(bytes([n]) * 16) for n in (5, 1, 9)]
    rows["generation"] = [50, 10, 90]
    rows["checksum"] = checksums(rows)
    file.write(slots, rows)
    stored = on_disk(file)
    assert np.array_equal(stored[slots], rows)
    assert np.array_equal(checksums(stored[slots]), stored["checksum"][slots])
    assert np.count_nonzero(stored["checksum"]) == 3
    file.void(slots[:2])
    stored = on_disk(file)
    assert stored["checksum"][[5, 1]].tolist() == [0, 0]
    assert stored["checksum"][9] == rows["checksum"][2]
    # Whoever still reads a forgotten slot checks that its generation stayed.
    assert stored["generation"][[5, 1, 9]].tolist() == [50, 10, 90]
    file.reuse(slots[1:])
    stored = on_disk(file)
    assert stored["checksum"][[5, 1, 9]].tolist() == [0, 0, 0]
    assert stored["generation"][[5, 1, 9]].tolist() == [50, 0, 0]
    file.close()


def test_records_of_a_salt_are_found_and_void_ones_are_not(shm_dir: Path) -> None:
    file = extents.create(str(shm_dir), make_geometry(), ARENA)
    rows = np.zeros(4, RECORD_DTYPE)
    rows["tenant"] = [np.void(one) for one in (b"s" * 16, b"t" * 16, b"s" * 16, b"s" * 16)]
    rows["generation"] = [5, 6, 7, 8]
    rows["checksum"] = 1
    file.write(np.arange(4, dtype=np.uint32), rows)
    file.void(np.array([2], np.uint32))
    slots, generations = file.of_salt(0, file.geometry.num_slots, b"s" * 16)
    assert (slots.tolist(), generations.tolist()) == ([0, 3], [5, 8])
    assert file.of_salt(1, 4, b"s" * 16)[0].tolist() == [3]
    assert file.of_salt(0, 4, b"u" * 16)[0].tolist() == []
    file.close()


def test_a_file_that_cannot_be_finished_leaves_nothing(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(geometry: object, arena: object) -> bytes:
        raise ValueError("as asked")

    monkeypatch.setattr(extents, "pack_header", fail)
    num_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="as asked"):
        extents.create(str(shm_dir), make_geometry(), ARENA)
    assert list(shm_dir.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == num_open


@pytest.fixture
def reports() -> Iterator[Reports]:
    with Reports() as made:
        yield made


def test_the_thread_survives_whatever_an_item_does_to_it(
    shm_dir: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = extents.create

    def create(directory: str, geometry: ExtentGeometry, arena: ArenaId, *near: Any) -> ExtentFile:
        if geometry.extent == 1:
            raise MemoryError("as asked")
        return real(directory, geometry, arena, *near)

    monkeypatch.setattr(extents, "create", create)
    allocator = Allocator(str(shm_dir), ARENA, reports.reporter)
    allocator.start()
    allocator.create(make_geometry(1))
    failed = reports.wait_for(ExtentCreated)
    assert failed.file is None
    assert "as asked" in str(failed.error)
    closed = Descriptor(os.memfd_create("x"))
    closed.give_back()
    allocator.close(closed)  # a fault of ours: given back twice
    allocator.create(make_geometry(2))
    file = file_of(reports.wait_for(ExtentCreated))
    assert allocator.is_alive()
    assert allocator.stop(5)
    assert not allocator.is_alive()
    file.close()


def test_a_pools_last_descriptor_is_closed_by_the_thread(shm_dir: Path, reports: Reports) -> None:
    allocator = Allocator(str(shm_dir), ARENA, reports.reporter)
    descriptor = Descriptor(os.memfd_create("pool"))
    allocator.close(descriptor)
    assert descriptor.is_open()  # not in the caller's thread
    allocator.start()
    assert wait_until(lambda: not descriptor.is_open())
    assert allocator.stop(5)


def test_the_thread_creates_and_removes_in_order(shm_dir: Path, reports: Reports) -> None:
    allocator = Allocator(str(shm_dir), ARENA, reports.reporter)
    allocator.start()
    for extent in (1, 2, 3):
        allocator.create(make_geometry(extent))
    files = [file_of(reports.wait_for(ExtentCreated)) for _ in range(3)]
    assert [file.geometry.extent for file in files] == [1, 2, 3]
    allocator.remove(files[1])
    assert wait_until(lambda: not files[1].writable.is_open())
    assert sorted(path.name for path in shm_dir.iterdir()) == [
        "00000001.extent",
        "00000003.extent",
    ]
    assert allocator.stop(5)
    files[0].close()
    files[2].close()


def test_no_extent_is_made_whose_namespace_is_not_written_down(
    shm_dir: Path, reports: Reports
) -> None:
    name = fingerprint(NAMESPACE)
    geometry = replace(make_geometry(), fingerprint=name)
    obstacle = shm_dir / namespacefiles.FOLDER / f"{name.hex()}.new"
    obstacle.mkdir(parents=True)  # a full file system, for instance
    allocator = Allocator(str(shm_dir), ARENA, reports.reporter)
    allocator.start()
    allocator.keep_namespace(name, NAMESPACE)
    allocator.create(geometry)
    refused = reports.wait_for(ExtentCreated)
    assert refused.file is None
    assert refused.error is not None
    assert "directory" in refused.error
    obstacle.rmdir()
    allocator.create(geometry)
    file = file_of(reports.wait_for(ExtentCreated))
    assert namespacefiles.read(str(shm_dir)) == ({name: NAMESPACE}, {})
    allocator.drop_namespace(name)
    allocator.remove(file)
    assert allocator.stop(5)
    assert namespacefiles.read(str(shm_dir)) == ({}, {})


def test_what_a_tier_owes_is_written_down_and_reported_written_or_not(
    shm_dir: Path, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    (spec,) = parse_all(["disk:/somewhere?size=1G"])
    store, tier, name = owedfiles.store_of(spec), TierId(0), fingerprint(NAMESPACE)
    allocator = Allocator(str(shm_dir), ARENA, reports.reporter)
    allocator.start()
    allocator.keep_owed(KeepOwed(tier, name, 7, 1, b"K" * 16), store)  # its folder is missing
    assert reports.wait_for(OwedKept) == OwedKept(tier, name, 7)
    assert wait_until(lambda: bool(caplog.messages))
    assert f"to forget of namespace {name.hex()} could not be done: " in caplog.text
    assert "KKKK" not in caplog.text, "no line has a key"
    (shm_dir / owedfiles.FOLDER).mkdir()
    allocator.keep_owed(KeepOwed(tier, name, 8, 1, b"k" * 16), store)
    assert reports.wait_for(OwedKept) == OwedKept(tier, name, 8)
    assert [one.keys for one in owedfiles.read(str(shm_dir), [spec])] == [b"k" * 16]
    allocator.drop_owed(DropOwed(tier, name), store)
    assert allocator.stop(5)
    assert owedfiles.read(str(shm_dir), [spec]) == []


def test_a_removed_file_keeps_its_bytes_for_who_maps_it(shm_dir: Path, reports: Reports) -> None:
    allocator = Allocator(str(shm_dir), ARENA, reports.reporter)
    allocator.start()
    allocator.create(make_geometry())
    file = file_of(reports.wait_for(ExtentCreated))
    os.pwrite(file.writable.fd, b"payload", file.geometry.slot_offset_bytes(3))
    view = mmap.mmap(file.readable.fd, file.geometry.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
    allocator.remove(file)
    assert allocator.stop(5)
    assert list(shm_dir.iterdir()) == []
    begin = file.geometry.slot_offset_bytes(3)
    assert view[begin : begin + 7] == b"payload"
    view.close()


def test_a_full_file_system_is_an_error_of_that_extent(short_dir: Path, reports: Reports) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    target = str(short_dir).encode()
    if libc.mount(b"tmpfs", target, b"tmpfs", 0, b"size=2m") != 0:
        pytest.skip(f"cannot mount a small tmpfs: {errno.errorcode[ctypes.get_errno()]}")
    try:
        allocator = Allocator(str(short_dir), ARENA, reports.reporter)
        allocator.start()
        allocator.create(make_geometry(1, 1 << 20))
        allocator.create(make_geometry(2, 4 << 20))
        allocator.create(make_geometry(3, 1 << 19))
        first = file_of(reports.wait_for(ExtentCreated))
        second = reports.wait_for(ExtentCreated)
        assert second.file is None
        assert second.error is not None
        assert "No space left" in second.error
        third = file_of(reports.wait_for(ExtentCreated))
        assert len(list(short_dir.iterdir())) == 2
        assert allocator.stop(5)
        first.close()
        third.close()
    finally:
        assert libc.umount2(target, 2) == 0


def test_stopping_what_never_started_is_fine(shm_dir: Path, reports: Reports) -> None:
    assert Allocator(str(shm_dir), ARENA, reports.reporter).stop(1)
