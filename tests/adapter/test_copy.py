"""Loads: every byte, every bound, the tripwire, and coalescing against a page-by-page model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.copy import LoadError, ShardLoad, held_load, load_pages
from adapter.pagememory import GroupPages, PagePart
from protocol.errors import ErrorCode
from protocol.ids import Epoch
from tests.adapter.arena import (
    EPOCH,
    POOL_PAGES,
    UNTOUCHED,
    Arena,
    check_untouched,
    content,
    slots,
)
from tests.adapter.responder import PAGE_BYTES


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(1, PAGE_BYTES)
    yield arena
    arena.close()


def test_pages_arrive_where_they_belong_and_nowhere_else(arena: Arena) -> None:
    memory = arena.memory()
    places = [(1, 0), (1, 1), (2, 3), (1, 2)]
    assert arena.load(arena.shard(memory, places, [5, 6, 0, 9])) == 4 * PAGE_BYTES
    pages = content(memory)
    for page, (extent, slot) in {5: (1, 0), 6: (1, 1), 0: (2, 3), 9: (1, 2)}.items():
        assert np.array_equal(pages[page], arena.page(extent, slot, 0))
    assert (np.delete(pages, [5, 6, 0, 9], axis=0) == UNTOUCHED).all()


def test_nothing_to_load_is_fine(arena: Arena) -> None:
    memory = arena.memory()
    assert arena.load(arena.shard(memory, [], [])) == 0
    assert arena.load() == 0
    check_untouched(memory)


def test_slots_of_chunks_without_a_wanted_page_are_not_looked_at(arena: Arena) -> None:
    memory = arena.memory()
    places = [(77, 99), (1, 1), (0, 0)]  # two that are nowhere: outside a window
    assert arena.load(arena.shard(memory, places, [-1, 3, -1])) == PAGE_BYTES
    assert np.array_equal(content(memory)[3], arena.page(1, 1, 0))


def test_groups_are_loaded_each_into_its_own_pages() -> None:
    arena = Arena(2, 4096, 512)
    wide, narrow = arena.memory(), arena.memory((200, 256), (312, 312), group=1)
    copied = arena.load(
        arena.shard(wide, [(1, 0), (2, 1)], [0, 1, 2, 3]),
        arena.shard(narrow, [(99, 9), (12, 3)], [-1, -1, -1, 0], group=1),
    )
    assert copied == 4 * 4096 + 512
    assert np.array_equal(content(wide)[3], arena.page(2, 1, 1))
    assert np.array_equal(content(narrow)[0], arena.page(12, 3, 1))
    assert (content(narrow)[1:] == UNTOUCHED).all()
    assert (narrow.parts[0].host[200:256] == UNTOUCHED).all()  # between the parts
    arena.close()


PAGES = st.permutations(list(range(POOL_PAGES)))
PLACES = st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 3)), min_size=1, max_size=8)
SHAPES = [
    (1, 4096, ()),
    (1, 1000, ()),
    (2, 2048, ((2048, 2304),)),
    (3, 4096, ((1024, 1024), (3072, 4000))),
]


@given(
    st.sampled_from(SHAPES),
    PLACES,
    PAGES,
    st.lists(st.booleans(), min_size=24, max_size=24),
    st.booleans(),
)
def test_equals_a_copy_page_by_page(
    shape: tuple[int, int, tuple[tuple[int, int], ...]],
    places: list[tuple[int, int]],
    pages: list[int],
    wanted: list[bool],
    is_sorted: bool,
) -> None:
    chunk_blocks, page_bytes, parts = shape
    arena = Arena(chunk_blocks, page_bytes)
    num_pages = len(places) * chunk_blocks
    chosen = sorted(pages[:num_pages]) if is_sorted else pages[:num_pages]
    chosen = [p if keep else -1 for p, keep in zip(chosen, wanted, strict=False)]
    memory = arena.memory(*parts)
    expected = content(memory)
    for index, page in enumerate(chosen):
        if page >= 0:
            extent, slot = places[index // chunk_blocks]
            expected[page] = arena.page(extent, slot, index % chunk_blocks)
    copied = arena.load(arena.shard(memory, places, chosen))
    assert copied == page_bytes * sum(page >= 0 for page in chosen)
    assert np.array_equal(content(memory), expected)
    for part in memory.parts:  # gaps too
        is_gap = np.arange(part.span_bytes) % part.stride_bytes >= part.size_bytes
        assert (part.host[is_gap] == UNTOUCHED).all()
    arena.close()


@pytest.mark.parametrize("page", [-2, POOL_PAGES, 1 << 30])
def test_pages_outside_the_pool_write_nothing(arena: Arena, page: int) -> None:
    memory = arena.memory()
    with pytest.raises(LoadError) as caught:
        arena.load(arena.shard(memory, [(1, 0), (1, 1)], [0, page]))
    assert caught.value.code == ErrorCode.PAGE_OUT_OF_RANGE
    check_untouched(memory)


def test_bad_descriptors_write_nothing(arena: Arena) -> None:
    memory = arena.memory()
    for places, code in (
        ([(1, 0), (3, 0)], ErrorCode.UNAVAILABLE),
        ([(1, 0), (1, 4)], ErrorCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(LoadError) as caught:
            arena.load(arena.shard(memory, places, [0, 1]))
        assert caught.value.code == code
    check_untouched(memory)


def test_another_epochs_extent_is_not_taken_for_it(arena: Arena) -> None:
    memory = arena.memory()
    with pytest.raises(LoadError, match="not mapped"):
        load_pages(arena.table, Epoch(b"x" * 16), [arena.shard(memory, [(1, 0)], [0])])
    check_untouched(memory)


def test_wrong_sizes_shapes_and_memory_write_nothing(arena: Arena) -> None:
    memory = arena.memory()
    flat = memory.parts[0].host
    with pytest.raises(LoadError) as caught:
        arena.load(arena.shard(GroupPages.packed(flat, PAGE_BYTES // 2), [(1, 0)], [0]))
    assert caught.value.code == ErrorCode.PAGE_SIZE_MISMATCH
    with pytest.raises(LoadError) as caught:
        arena.load(ShardLoad(0, memory, slots((1, 0)), np.zeros((2, 1), np.int32)))
    assert caught.value.code == ErrorCode.COUNT_MISMATCH
    read_only = flat.view()
    read_only.flags.writeable = False
    for bad in (read_only, np.zeros(2 * flat.size, np.uint8)[::2], flat.view(np.int8), flat[1:]):
        part = PagePart(bad, PAGE_BYTES, PAGE_BYTES)  # type: ignore[arg-type]
        with pytest.raises(LoadError) as caught:
            arena.load(arena.shard(GroupPages((part,), POOL_PAGES), [(1, 0)], [0]))
        assert caught.value.code == ErrorCode.POOL_INVALID
    check_untouched(memory)


def test_a_slot_that_was_reused_trips(arena: Arena) -> None:
    shard = arena.shard(arena.memory(), [(1, 0), (2, 1)], [0, 1])
    arena.files[2].set_generation(1, 77)
    with pytest.raises(
        LoadError, match="slot 1 of extent 2 carries generation 77, not 2"
    ) as caught:
        arena.load(shard)
    assert caught.value.code == ErrorCode.COPY_FAILED
    arena.files[2].set_generation(1, 0)
    shard.slots["generation"][1] = 0
    with pytest.raises(LoadError):
        arena.load(shard)


def test_a_stopped_load_writes_no_further(arena: Arena) -> None:
    memory = arena.memory()
    answers = iter([False, True])
    with (
        held_load(arena.table, EPOCH, [arena.shard(memory, [(1, 0), (1, 1)], [0, 2])]) as load,
        pytest.raises(LoadError, match="ends"),
    ):
        load.copy(lambda: next(answers))
    assert np.array_equal(content(memory)[0], arena.page(1, 0, 0))
    assert (content(memory)[1:] == UNTOUCHED).all()


def test_extents_are_given_back_after_success_and_failure(arena: Arena) -> None:
    memory = arena.memory()
    arena.load(arena.shard(memory, [(1, 0)], [0]))
    with pytest.raises(LoadError):
        arena.load(arena.shard(memory, [(1, 0), (9, 0)], [0, 1]))
    assert arena.users() == 0
