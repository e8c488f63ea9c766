"""Loads as batches: every byte, every bound, and the tripwire, against copies page by page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.copy import LoadError, ShardLoad
from adapter.loadbatches import DeviceLoad, held_device_load, join
from adapter.pagememory import GroupPages, LayerSlice, PagePart
from protocol.device.interface import Batch, Direction
from protocol.device.simulated.driver import Driver
from protocol.errors import ErrorCode
from protocol.ids import Epoch
from tests.adapter.arena import EPOCH, POOL_PAGES, slots
from tests.adapter.devicearena import DeviceArena, simulated_driver
from tests.adapter.responder import PAGE_BYTES

WAIT_S = 10.0


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    with simulated_driver(tmp_path, monkeypatch) as driver:
        yield driver


@pytest.fixture
def arena(driver: Driver) -> Iterator[DeviceArena]:
    arena = DeviceArena(driver, 1, PAGE_BYTES)
    yield arena
    arena.close()


def run(arena: DeviceArena, *batches: Batch) -> None:
    """On a stream, to its end."""
    stream = arena.device.create_stream()
    for batch in batches:
        arena.device.copy(stream, batch, Direction.TO_DEVICE)
    stream.synchronize(WAIT_S)


def held(arena: DeviceArena, *shards: ShardLoad) -> Any:
    return held_device_load(arena.table, EPOCH, shards)


SHAPES: list[tuple[int, int, tuple[tuple[int, int], ...]]] = [
    (1, 4096, ()),
    (1, 1000, ()),
    (2, 2048, ((2048, 2304),)),
    (3, 4096, ((1024, 1024), (3072, 4000))),
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_a_copy_page_by_page(
    driver: Driver, shape: tuple[int, int, tuple[tuple[int, int], ...]], seed: int
) -> None:
    chunk_blocks, page_bytes, parts = shape
    rng = np.random.default_rng(seed)
    arena = DeviceArena(driver, chunk_blocks, page_bytes)
    places = [(int(rng.integers(1, 3)), int(rng.integers(0, 4))) for _ in range(7)]
    pages = rng.permutation(POOL_PAGES)[: len(places) * chunk_blocks]
    pages = np.where(rng.random(len(pages)) < 0.7, np.sort(pages) if seed % 2 else pages, -1)
    whole, by_layer = arena.memory(*parts), arena.memory(*parts)
    expected = arena.content(whole)
    for index, page in enumerate(pages.tolist()):
        if page >= 0:
            extent, slot = places[index // chunk_blocks]
            expected[page] = arena.page(extent, slot, index % chunk_blocks)
    with held(arena, arena.shard(whole, places, pages)) as load:
        assert load.num_pages == (pages >= 0).sum()
        assert load.num_bytes == load.num_pages * page_bytes
        assert load.whole().num_bytes == load.num_bytes
        load.check()
        run(arena, load.whole())
        load.check()
    bounds = sorted({0, page_bytes, *rng.integers(1, page_bytes, 3).tolist()})
    with held(arena, arena.shard(by_layer, places, pages)) as load:
        layers = [
            load.layer([LayerSlice(0, first, stop - first), LayerSlice(1, 0, 8)])
            for first, stop in itertools.pairwise(bounds)
        ]
        run(arena, *layers)
    assert np.array_equal(arena.content(whole), expected)
    for one, other in zip(whole.parts, by_layer.parts, strict=True):
        assert np.array_equal(arena.part_bytes(one), arena.part_bytes(other))  # gaps too
    assert arena.users() == 0
    arena.close()


def test_groups_are_loaded_each_into_its_own_pages_by_one_batch(driver: Driver) -> None:
    arena = DeviceArena(driver, 2, 4096, 512)
    wide, narrow = arena.memory(), arena.memory((200, 256), (312, 312), group=1)
    shards = (
        arena.shard(wide, [(1, 0), (2, 1)], [0, 1, 2, 3]),
        arena.shard(narrow, [(99, 9), (12, 3)], [-1, -1, -1, 0], group=1),
    )
    with held(arena, *shards) as load:
        run(arena, load.whole())
    assert np.array_equal(arena.content(wide)[3], arena.page(2, 1, 1))
    assert np.array_equal(arena.content(narrow)[0], arena.page(12, 3, 1))
    arena.close()


def test_nothing_to_load_is_an_empty_batch(arena: DeviceArena) -> None:
    memory = arena.memory()
    for shards in ((), (arena.shard(memory, [], []),), (arena.shard(memory, [(77, 9)], [-1]),)):
        with held(arena, *shards) as load:
            assert load.whole().sizes.size == load.num_bytes == 0
            assert load.layer([LayerSlice(0, 0, 8)]).sizes.size == 0
            load.check()
    assert join([]).sizes.size == 0


def test_batches_are_joined_in_order(arena: DeviceArena) -> None:
    memory = arena.memory()
    with (
        held(arena, arena.shard(memory, [(1, 0)], [3])) as one,
        held(arena, arena.shard(memory, [(2, 1)], [5])) as other,
    ):
        joined = join([one.whole(), other.whole()])
        run(arena, joined)
    assert joined.targets.tolist() == [memory.parts[0].address + PAGE_BYTES * at for at in (3, 5)]
    assert np.array_equal(arena.content(memory)[5], arena.page(2, 1, 0))


@pytest.mark.parametrize("page", [-2, POOL_PAGES, 1 << 30])
def test_pages_outside_the_pool_are_refused(arena: DeviceArena, page: int) -> None:
    refused(arena, arena.shard(arena.memory(), [(1, 0), (1, 1)], [0, page]), "PAGE_OUT_OF_RANGE")


def test_bad_descriptors_are_refused(arena: DeviceArena) -> None:
    memory = arena.memory()
    refused(arena, arena.shard(memory, [(1, 0), (3, 0)], [0, 1]), "UNAVAILABLE")
    refused(arena, arena.shard(memory, [(1, 0), (1, 4)], [0, 1]), "INVALID_ARGUMENT")
    refused(
        arena, ShardLoad(0, memory, slots((1, 0)), np.zeros((2, 1), np.int32)), "COUNT_MISMATCH"
    )
    halves = GroupPages(
        (PagePart.on_device(memory.parts[0].address, 1 << 16, PAGE_BYTES // 2, PAGE_BYTES // 2),), 4
    )
    refused(arena, arena.shard(halves, [(1, 0)], [0]), "PAGE_SIZE_MISMATCH")
    with (
        pytest.raises(LoadError, match="not mapped"),
        held_device_load(arena.table, Epoch(b"x" * 16), [arena.shard(memory, [(1, 0)], [0])]),
    ):
        pass


def test_memory_of_no_device_and_pages_that_do_not_fit_are_refused(arena: DeviceArena) -> None:
    host = GroupPages.packed(np.zeros(4 * PAGE_BYTES, np.uint8), PAGE_BYTES)
    refused(arena, arena.shard(host, [(1, 0)], [0]), "POOL_INVALID")
    part = PagePart.on_device(arena.memory().parts[0].address, PAGE_BYTES, PAGE_BYTES, PAGE_BYTES)
    refused(arena, arena.shard(GroupPages((part,), 2), [(1, 0)], [0]), "POOL_INVALID")


def refused(arena: DeviceArena, shard: ShardLoad, code: str) -> None:
    with pytest.raises(LoadError) as caught, held(arena, shard):
        pass
    assert caught.value.code == ErrorCode[code]
    assert arena.users() == 0


def test_a_slot_that_was_reused_trips(arena: DeviceArena) -> None:
    shard = arena.shard(arena.memory(), [(1, 0), (2, 1)], [0, 1])
    load: DeviceLoad
    with held(arena, shard) as load:
        load.check()
        arena.files[2].set_generation(1, 77)
        with pytest.raises(
            LoadError, match="slot 1 of extent 2 carries generation 77, not 2"
        ) as caught:
            load.check()
        assert caught.value.code == ErrorCode.COPY_FAILED
    arena.files[2].set_generation(1, 0)
    shard.slots["generation"][1] = 0
    with held(arena, shard) as load, pytest.raises(LoadError):
        load.check()
