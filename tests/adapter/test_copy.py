"""Loads: every byte, every bound, the tripwire, and coalescing against a page-by-page model."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from adapter.copy import LoadError, load_pages
from adapter.extents import ExtentTable, MappedExtent
from protocol.errors import ErrorCode
from protocol.ids import ArenaId, Epoch
from protocol.layout import SLOT_DTYPE
from tests.adapter.responder import PAGE_BYTES, ExtentFile, geometry, namespace

EPOCH = Epoch(b"e" * 16)
POOL_PAGES = 24


class Arena:
    """Two mapped extents of four slots each; generation of slot i is i + 1."""

    def __init__(self, chunk_blocks: int, page_bytes: int) -> None:
        self.table = ExtentTable(lambda: None)
        self.files: dict[int, ExtentFile] = {}
        self.page_bytes = page_bytes
        self.chunk_blocks = chunk_blocks
        owner = namespace(chunk_blocks=chunk_blocks, page_bytes=page_bytes)
        for number in (1, 2):
            file = ExtentFile(geometry(number, owner), ArenaId(b"a" * 16), seed=number)
            size = file.geometry.file_bytes
            mapping = mmap.mmap(file.fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
            self.table.add(MappedExtent(EPOCH, file.geometry, mapping))
            self.files[number] = file

    def slots(self, *places: tuple[int, int]) -> NDArray[Any]:
        return np.array([(e, s, s + 1) for e, s in places], dtype=SLOT_DTYPE)

    def page(self, extent: int, slot: int, index: int) -> NDArray[np.uint8]:
        start = index * self.page_bytes
        page: NDArray[np.uint8] = self.files[extent].payloads[slot][start : start + self.page_bytes]
        return page

    def pool(self) -> NDArray[np.uint8]:
        return np.full(POOL_PAGES * self.page_bytes, 0xEE, dtype=np.uint8)

    def load(self, slots: NDArray[Any], pool: NDArray[np.uint8], pages: Any) -> int:
        offsets = np.asarray(pages, dtype=np.int64).reshape(len(slots), self.chunk_blocks)
        offsets = np.where(offsets < 0, -1, offsets * self.page_bytes)
        return load_pages(self.table, EPOCH, slots, pool, offsets, self.page_bytes)

    def close(self) -> None:
        for file in self.files.values():
            file.close()


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(1, PAGE_BYTES)
    yield arena
    arena.close()


def check_untouched(pool: NDArray[np.uint8]) -> None:
    assert (pool == 0xEE).all()


def test_pages_arrive_where_they_belong_and_nowhere_else(arena: Arena) -> None:
    pool = arena.pool()
    slots = arena.slots((1, 0), (1, 1), (2, 3), (1, 2))
    assert arena.load(slots, pool, [5, 6, 0, 9]) == 4 * PAGE_BYTES
    pages = pool.reshape(POOL_PAGES, PAGE_BYTES)
    for page, (extent, slot) in {5: (1, 0), 6: (1, 1), 0: (2, 3), 9: (1, 2)}.items():
        assert np.array_equal(pages[page], arena.page(extent, slot, 0))
    check_untouched(np.delete(pages, [5, 6, 0, 9], axis=0))


def test_nothing_to_load_is_fine(arena: Arena) -> None:
    pool = arena.pool()
    assert arena.load(arena.slots(), pool, []) == 0
    check_untouched(pool)


PAGES = st.permutations(list(range(POOL_PAGES)))
PLACES = st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 3)), min_size=1, max_size=8)


@given(
    st.sampled_from([(1, 4096), (1, 1000), (2, 2048), (3, 4096)]),
    PLACES,
    PAGES,
    st.lists(st.booleans(), min_size=24, max_size=24),
    st.booleans(),
)
def test_equals_a_copy_page_by_page(
    shape: tuple[int, int],
    places: list[tuple[int, int]],
    pages: list[int],
    wanted: list[bool],
    is_sorted: bool,
) -> None:
    chunk_blocks, page_bytes = shape
    arena = Arena(chunk_blocks, page_bytes)
    num_pages = len(places) * chunk_blocks
    chosen = sorted(pages[:num_pages]) if is_sorted else pages[:num_pages]
    chosen = [p if keep else -1 for p, keep in zip(chosen, wanted, strict=False)]
    expected = arena.pool()
    for index, page in enumerate(chosen):
        if page >= 0:
            extent, slot = places[index // chunk_blocks]
            source = arena.page(extent, slot, index % chunk_blocks)
            expected[page * page_bytes : (page + 1) * page_bytes] = source
    pool = arena.pool()
    copied = arena.load(arena.slots(*places), pool, chosen)
    assert copied == page_bytes * sum(page >= 0 for page in chosen)
    assert np.array_equal(pool, expected)
    arena.close()


@pytest.mark.parametrize("page", [-2, POOL_PAGES, POOL_PAGES - 0.5])
def test_offsets_outside_the_pool_write_nothing(arena: Arena, page: float) -> None:
    pool = arena.pool()
    offsets = np.array([[0], [int(page * PAGE_BYTES)]], dtype=np.int64)
    slots = arena.slots((1, 0), (1, 1))
    with pytest.raises(LoadError) as caught:
        load_pages(arena.table, EPOCH, slots, pool, offsets, PAGE_BYTES)
    assert caught.value.code == ErrorCode.PAGE_OUT_OF_RANGE
    check_untouched(pool)


def test_bad_descriptors_write_nothing(arena: Arena) -> None:
    pool = arena.pool()
    for places, code in (
        ([(1, 0), (3, 0)], ErrorCode.UNAVAILABLE),
        ([(1, 0), (1, 4)], ErrorCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(LoadError) as caught:
            arena.load(arena.slots(*places), pool, [0, 1])
        assert caught.value.code == code
    check_untouched(pool)


def test_another_epochs_extent_is_not_taken_for_it(arena: Arena) -> None:
    pool = arena.pool()
    offsets = np.zeros((1, 1), dtype=np.int64)
    other = Epoch(b"x" * 16)
    with pytest.raises(LoadError, match="not mapped"):
        load_pages(arena.table, other, arena.slots((1, 0)), pool, offsets, PAGE_BYTES)
    check_untouched(pool)


def test_wrong_page_size_shapes_and_pools_write_nothing(arena: Arena) -> None:
    pool = arena.pool()
    slots = arena.slots((1, 0))
    zero = np.zeros((1, 1), dtype=np.int64)
    with pytest.raises(LoadError) as caught:
        load_pages(arena.table, EPOCH, slots, pool, zero, PAGE_BYTES // 2)
    assert caught.value.code == ErrorCode.PAGE_SIZE_MISMATCH
    with pytest.raises(LoadError) as caught:
        load_pages(arena.table, EPOCH, slots, pool, np.zeros((2, 1), np.int64), PAGE_BYTES)
    assert caught.value.code == ErrorCode.COUNT_MISMATCH
    read_only = pool.view()
    read_only.flags.writeable = False
    for bad in (read_only, pool[::2], pool.view(np.int8)):
        with pytest.raises(LoadError) as caught:
            load_pages(arena.table, EPOCH, slots, bad, zero, PAGE_BYTES)  # type: ignore[arg-type]
        assert caught.value.code == ErrorCode.POOL_INVALID
    check_untouched(pool)


def test_a_slot_that_was_reused_trips(arena: Arena) -> None:
    slots = arena.slots((1, 0), (2, 1))
    arena.files[2].set_generation(1, 77)
    with pytest.raises(
        LoadError, match="slot 1 of extent 2 carries generation 77, not 2"
    ) as caught:
        arena.load(slots, arena.pool(), [0, 1])
    assert caught.value.code == ErrorCode.COPY_FAILED
    arena.files[2].set_generation(1, 0)
    slots["generation"][1] = 0
    with pytest.raises(LoadError):
        arena.load(slots, arena.pool(), [0, 1])


def test_extents_are_given_back_after_success_and_failure(arena: Arena) -> None:
    arena.load(arena.slots((1, 0)), arena.pool(), [0])
    with pytest.raises(LoadError):
        arena.load(arena.slots((1, 0), (9, 0)), arena.pool(), [0, 1])
    for number in (1, 2):
        extent = arena.table.get(number, EPOCH)
        assert extent is not None
        assert extent.num_users == 0
