"""Copies, their bounds, and population in steps."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.copier import mappings
from server.copier.mappings import Mappings, runs

POOL_BYTES = 64 * 1024
EXTENT_BYTES = 128 * 1024
FIRST_BYTE = 8192


@dataclass
class Setup:
    maps: Mappings
    pool: NDArray[np.uint8]
    extent: NDArray[np.uint8]
    pool_fd: int
    extent_fd: int


@pytest.fixture
def setup() -> Iterator[Setup]:
    fds = [os.memfd_create(name) for name in ("pool", "extent")]
    views = []
    for fd, size in zip(fds, (POOL_BYTES, EXTENT_BYTES), strict=True):
        os.posix_fallocate(fd, 0, size)
        views.append(np.frombuffer(mmap.mmap(fd, size), dtype=np.uint8))
    views[0][:] = np.random.default_rng(1).integers(0, 256, POOL_BYTES, dtype=np.uint8)
    maps = Mappings()
    maps.map_pool(5, fds[0], POOL_BYTES)
    maps.map_extent(6, fds[1], EXTENT_BYTES, FIRST_BYTE)
    yield Setup(maps, views[0], views[1], fds[0], fds[1])
    for fd in fds:
        os.close(fd)


def parts(*triples: tuple[int, int, int]) -> NDArray[np.int64]:
    return np.ascontiguousarray(np.array(triples, dtype=np.int64).reshape(-1, 3).transpose())


def test_a_copy_moves_exactly_its_bytes(setup: Setup) -> None:
    before = setup.extent.copy()
    setup.maps.copy(5, 6, parts((4096, FIRST_BYTE, 4096), (0, 40_000, 100)))
    expected = before
    expected[FIRST_BYTE : FIRST_BYTE + 4096] = setup.pool[4096:8192]
    expected[40_000:40_100] = setup.pool[:100]
    assert np.array_equal(setup.extent, expected)


@pytest.mark.parametrize(
    "triple",
    [
        (-1, FIRST_BYTE, 10),
        (0, FIRST_BYTE - 1, 10),
        (0, 0, 10),
        (POOL_BYTES - 9, FIRST_BYTE, 10),
        (0, EXTENT_BYTES - 9, 10),
        (0, FIRST_BYTE, -1),
        (2**62, FIRST_BYTE, 10),
        (0, 2**62, 10),
        (0, FIRST_BYTE, 2**62),
        (2**63 - 1, FIRST_BYTE, 2**63 - 1),
    ],
)
def test_b48_a_part_out_of_bounds_writes_nothing(
    setup: Setup, triple: tuple[int, int, int]
) -> None:
    before = setup.extent.copy()
    with pytest.raises(ValueError, match=r"outside|longer"):
        setup.maps.copy(5, 6, parts((0, FIRST_BYTE, 64), triple))
    assert np.array_equal(setup.extent, before)


@pytest.mark.parametrize(("pool", "extent"), [(6, 6), (5, 5), (0, 0)])
def test_unknown_numbers_are_refused(setup: Setup, pool: int, extent: int) -> None:
    with pytest.raises(ValueError, match="not mapped"):
        setup.maps.copy(pool, extent, parts((0, FIRST_BYTE, 1)))


def test_what_is_unmapped_is_unknown(setup: Setup) -> None:
    setup.maps.unmap_pool(5)
    setup.maps.unmap_pool(5)
    with pytest.raises(ValueError, match="not mapped"):
        setup.maps.copy(5, 6, parts((0, FIRST_BYTE, 1)))
    setup.maps.unmap_extent(6)
    assert not setup.maps.is_cold


def test_a_pool_is_mapped_read_only(setup: Setup) -> None:
    view = mappings._map(setup.pool_fd, POOL_BYTES, False)
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.setflags(write=True)


def test_a_pool_shorter_than_registered_is_refused(setup: Setup) -> None:
    with pytest.raises(OSError, match="65537 were registered"):
        setup.maps.map_pool(9, setup.pool_fd, POOL_BYTES + 1)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3)), max_size=12),
)
def test_runs_cover_the_same_bytes_in_order(triples: list[tuple[int, int, int]]) -> None:
    def moves(of: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        return [(s + i, t + i) for s, t, n in of for i in range(n)]

    joined = runs(parts(*triples))
    assert moves(joined) == moves(triples)
    assert len(joined) <= len(triples)


def test_neighbours_on_both_sides_become_one_run() -> None:
    assert runs(parts((0, 100, 10), (10, 110, 10), (20, 130, 10), (40, 140, 10))) == [
        (0, 100, 20),
        (20, 130, 10),
        (40, 140, 10),
    ]


def resident_pages(view: NDArray[np.uint8]) -> int:
    begin = view.ctypes.data
    with open("/proc/self/smaps", encoding="ascii") as file:
        inside = False
        for line in file:
            if line[0] in "0123456789abcdef" and "-" in line.split()[0]:
                inside = int(line.split("-")[0], 16) == begin
            elif inside and line.startswith("Rss:"):
                return int(line.split()[1]) // 4
    return 0


def test_population_fills_in_short_steps_and_ends() -> None:
    size = 3 * mappings.POPULATE_STEP_BYTES + 4096
    fd = os.memfd_create("extent")
    try:
        os.posix_fallocate(fd, 0, size)
        maps = Mappings()
        maps.map_extent(1, fd, size, 4096)
        view = maps._extents[1].view
        resident = []
        while maps.is_cold:
            maps.populate_step()
            resident.append(resident_pages(view) * 4096)
        assert resident == [
            min(size, (step + 1) * mappings.POPULATE_STEP_BYTES) for step in range(4)
        ]
    finally:
        os.close(fd)


def test_a_sparse_pool_is_not_populated() -> None:
    fd = os.memfd_create("pool")
    try:
        os.ftruncate(fd, 1 << 20)
        maps = Mappings()
        maps.map_pool(1, fd, 1 << 20)
        while maps.is_cold:
            maps.populate_step()
        assert os.fstat(fd).st_blocks == 0
    finally:
        os.close(fd)
