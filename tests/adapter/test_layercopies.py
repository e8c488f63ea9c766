"""Copies by layer: every byte against a copy page by page, how few calls, and the tripwire."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.copy import LoadError, held_load
from adapter.layercopies import LayerCopies
from adapter.pagememory import LayerSlice
from protocol.errors import ErrorCode
from tests.adapter.arena import EPOCH, POOL_PAGES, UNTOUCHED, Arena, content
from tests.adapter.responder import PAGE_BYTES

SHAPES = [
    (1, 4096, ()),
    (1, 1000, ()),
    (2, 2048, ((2048, 2304),)),
    (3, 1000, ((600, 640), (400, 400))),
]
WHOLE = [LayerSlice(0, 0, PAGE_BYTES)]


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(1, PAGE_BYTES)
    yield arena
    arena.close()


@given(
    st.sampled_from(SHAPES),
    st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 3)), min_size=1, max_size=8),
    st.permutations(list(range(POOL_PAGES))),
    st.lists(st.booleans(), min_size=24, max_size=24),
    st.lists(st.integers(1, 999), max_size=3),
)
def test_equals_a_copy_page_by_page(
    shape: tuple[int, int, tuple[tuple[int, int], ...]],
    places: list[tuple[int, int]],
    pages: list[int],
    wanted: list[bool],
    layer_starts: list[int],
) -> None:
    chunk_blocks, page_bytes, parts = shape
    arena = Arena(chunk_blocks, page_bytes)
    memory = arena.memory(*parts)
    chosen = [page if keep else -1 for page, keep in zip(pages, wanted, strict=True)]
    chosen = chosen[: len(places) * chunk_blocks]
    expected = content(memory)
    bounds = sorted({0, page_bytes, *layer_starts})
    with held_load(arena.table, EPOCH, [arena.shard(memory, places, chosen)]) as load:
        copies = LayerCopies(load)
        for start, stop in itertools.pairwise(bounds):
            copies.copy([LayerSlice(0, start, stop - start)])
            copies.check()
            for index, page in enumerate(chosen):
                if page >= 0:
                    source = arena.page(*places[index // chunk_blocks], index % chunk_blocks)
                    expected[page, start:stop] = source[start:stop]
            assert np.array_equal(content(memory), expected)  # this layer, and no further
    for part in memory.parts:
        is_gap = np.arange(part.span_bytes) % part.stride_bytes >= part.size_bytes
        assert (part.host[is_gap] == UNTOUCHED).all()
    arena.close()


def test_groups_are_copied_each_where_its_own_slices_say() -> None:
    arena = Arena(1, 4096, 512)
    wide, narrow = arena.memory(), arena.memory(group=1)
    shards = [
        arena.shard(wide, [(1, 0)], [3]),
        arena.shard(narrow, [(12, 3)], [4], group=1),
    ]
    with held_load(arena.table, EPOCH, shards) as load:
        LayerCopies(load).copy([LayerSlice(1, 128, 256)])
    assert (content(wide) == UNTOUCHED).all()
    expected = np.full((POOL_PAGES, 512), UNTOUCHED, dtype=np.uint8)
    expected[4, 128:384] = arena.page(12, 3, 0)[128:384]
    assert np.array_equal(content(narrow), expected)
    arena.close()


@pytest.mark.parametrize(
    ("slots", "calls"),
    [
        ([0, 1, 2, 3], 1),
        ([3, 2, 1, 0], 1),
        ([0, 2], 1),
        ([0, 1, 3, 2], 2),
        ([1], 1),
        ([], 0),
    ],
)
def test_slots_at_even_distances_go_in_one_call(arena: Arena, slots: list[int], calls: int) -> None:
    memory = arena.memory()
    asked: list[None] = []

    def is_stopped() -> bool:
        asked.append(None)
        return False

    pages = [17, 4, 9, 2][: len(slots)]
    shard = arena.shard(memory, [(1, slot) for slot in slots], pages)
    with held_load(arena.table, EPOCH, [shard]) as load:
        LayerCopies(load).copy(WHOLE, is_stopped)
    assert len(asked) == calls
    for page, slot in zip(pages, slots, strict=True):
        assert np.array_equal(content(memory)[page], arena.page(1, slot, 0))


def test_a_slot_that_was_reused_trips(arena: Arena) -> None:
    shard = arena.shard(arena.memory(), [(1, 0), (2, 1), (2, 3)], [0, 1, 2])
    with held_load(arena.table, EPOCH, [shard]) as load:
        copies = LayerCopies(load)
        copies.check()
        arena.files[2].set_generation(3, 77)
        with pytest.raises(
            LoadError, match="slot 3 of extent 2 carries generation 77, not 4"
        ) as caught:
            copies.check()
    assert caught.value.code == ErrorCode.COPY_FAILED
    assert (caught.value.detail["extent"], caught.value.detail["slot"]) == (2, 3)


def test_a_slot_that_is_free_trips_even_where_that_was_named(arena: Arena) -> None:
    arena.files[1].set_generation(0, 0)
    shard = arena.shard(arena.memory(), [(1, 0)], [0])
    shard.slots["generation"][0] = 0
    with held_load(arena.table, EPOCH, [shard]) as load, pytest.raises(LoadError):
        LayerCopies(load).check()


def test_a_stopped_load_writes_no_further(arena: Arena) -> None:
    memory = arena.memory()
    answers = iter([False, True])
    shard = arena.shard(memory, [(1, 0), (2, 0)], [0, 2])
    with held_load(arena.table, EPOCH, [shard]) as load, pytest.raises(LoadError, match="ends"):
        LayerCopies(load).copy(WHOLE, lambda: next(answers))
    assert np.array_equal(content(memory)[0], arena.page(1, 0, 0))
    assert (content(memory)[1:] == UNTOUCHED).all()
