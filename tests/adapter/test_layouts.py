"""V2 layouts become the common description and pages; what they leave open is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.layouts import read_layout
from adapter.pages import SharedPool
from adapter.refusals import UncachedError
from protocol.device.interface import MemoryKind
from tests.adapter.gpu import simulated

SLOTS = 5


@dataclass
class Region:
    """As the host's: part i is ``size`` bytes at ``base + stride * i``."""

    base: int
    size: int
    stride: int
    num_slots: int = SLOTS
    buffers: list[Any] = field(default_factory=list)

    @property
    def span(self) -> int:
        return self.stride * (self.num_slots - 1) + self.size


@dataclass
class Group:
    layer_group_id: int
    layer_ids: list[int]
    window_size: int | None
    regions: list[Any]
    replicated_regions: list[Any] = field(default_factory=list)


@dataclass
class Layout:
    tokens_per_block: int
    groups: list[Any]
    dtype: str = "torch.bfloat16"


def both(layer: int) -> list[tuple[int, str, int]]:
    return [(layer, "key", 1), (layer, "value", 1)]


def make(base: int) -> Layout:
    """Two groups: layers 0 and 2 with K and V apart, layer 1 behind a window; gaps everywhere."""
    keys = Region(base + 256, 64, 80, buffers=[(0, "key", 1), (2, "key", 1)])
    values = Region(keys.base + keys.span + 32, 64, 64, buffers=[(0, "value", 1), (2, "value", 1)])
    window = Region(values.base + values.span, 48, 64, num_slots=3, buffers=both(1))
    return Layout(16, [Group(1, [1], 8, [window]), Group(0, [0, 2], None, [keys, values])])


@pytest.fixture
def pool() -> SharedPool:
    return SharedPool.create(4096)


def test_groups_come_in_the_order_of_their_numbers(pool: SharedPool) -> None:
    shape, memory = read_layout(make(pool.address))
    first, second = shape.groups
    assert (first.layers, first.num_pages, first.page_bytes, first.window_tokens) == (
        (0, 2),
        SLOTS,
        128,
        0,
    )
    assert (second.layers, second.num_pages, second.page_bytes, second.window_tokens) == (
        (1,),
        3,
        48,
        8,
    )
    assert (shape.tokens_per_block, shape.dtype, shape.kv_factor) == (16, "bfloat16", 2)
    assert [group.num_pages for group in memory.groups] == [SLOTS, 3]


def test_regions_of_one_pool_are_exported(pool: SharedPool) -> None:
    layout = make(pool.address)
    _, memory = read_layout(layout)
    assert memory.export is not None
    assert (memory.export.fd, memory.export.num_bytes) == (pool.fd, pool.num_bytes)
    (keys, values), (window,) = memory.export.regions
    assert (keys.offset_bytes, keys.size_bytes, keys.stride_bytes) == (256, 64, 80)
    assert values.offset_bytes == 256 + 80 * 4 + 64 + 32
    assert (window.size_bytes, window.stride_bytes) == (48, 64)


def test_pages_are_where_the_layout_says(pool: SharedPool) -> None:
    pool.view[:] = np.arange(pool.num_bytes) % 251
    layout = make(pool.address)
    _, memory = read_layout(layout)
    for group, told in zip(memory.groups, reversed(layout.groups), strict=True):
        for part, region in zip(group.parts, told.regions, strict=True):
            for page in range(region.num_slots):
                start = region.base - pool.address + region.stride * page
                found = part.host[part.stride_bytes * page :][: part.size_bytes]
                assert np.array_equal(found, pool.view[start : start + region.size])


def test_layers_have_their_keys_and_values(pool: SharedPool) -> None:
    _, memory = read_layout(make(pool.address))
    assert set(memory.layers) == {0, 1, 2}
    found = {
        layer: [(piece.group, piece.start_byte, piece.num_bytes) for piece in pieces]
        for layer, pieces in memory.layers.items()
    }
    assert found == {
        0: [(0, 0, 32), (0, 64, 32)],
        2: [(0, 32, 32), (0, 96, 32)],
        1: [(1, 0, 24), (1, 24, 24)],
    }
    assert memory.is_layered


def test_scales_are_shown_if_each_key_and_value_has_some(pool: SharedPool) -> None:
    layout = make(pool.address)
    window, (keys, values) = layout.groups[0].regions[0], layout.groups[1].regions
    window.buffers = [*both(1), (1, "key_block_scale", 1), (1, "value_block_scale", 1)]
    assert not read_layout(layout)[0].has_scales
    keys.buffers += [(0, "key_block_scale", 1), (2, "key_block_scale", 1)]
    assert not read_layout(layout)[0].has_scales  # those of the values may be anywhere
    values.buffers.append((2, "value_block_scale", 1))
    assert not read_layout(layout)[0].has_scales
    values.buffers.append((0, "value_block_scale", 1))
    shape, memory = read_layout(layout)
    assert shape.has_scales
    assert shape.groups[0].page_bytes == 128  # whatever is in a page goes with it
    assert not memory.is_layered


def test_a_latent_has_scales_of_its_keys_only(pool: SharedPool) -> None:
    buffers = [(0, "key", 1), (0, "key_block_scale", 1)]
    layout = Layout(16, [Group(0, [0], None, [Region(pool.address, 64, 64, buffers=buffers)])])
    assert read_layout(layout)[0].has_scales
    buffers.pop(0)  # scales of nothing that is shown
    assert not read_layout(layout)[0].has_scales


class Role(Enum):
    KEY = "key"
    VALUE = "value"


def test_buffers_may_be_objects(pool: SharedPool) -> None:
    layout = make(pool.address)
    layout.groups[0].regions[0].buffers = [
        SimpleNamespace(layer_id=1, role=role, expansion=1) for role in Role
    ]
    assert read_layout(layout)[1].is_layered
    assert read_layout(layout)[0].layout == read_layout(make(pool.address))[0].layout


@pytest.mark.parametrize(
    "buffers",
    [
        [],
        [(1, "key", 1)] * 5,
        [(1, "key", 1), (1, "value", 2)],
        [(1, "key", 1), (1, "key_block_scale", 1)],
        [(1, "key", 1), (7, "value", 1)],
        [(1, "key", 1)] * 4 + [(1, "value", 1)],
    ],
)
def test_layers_that_are_in_doubt_are_not_told(pool: SharedPool, buffers: list[Any]) -> None:
    layout = make(pool.address)
    layout.groups[0].regions[0].buffers = buffers
    assert read_layout(layout)[1].layers == {}


def test_a_layer_without_buffers_is_in_doubt_too(pool: SharedPool) -> None:
    layout = make(pool.address)
    layout.groups[0].layer_ids = [1, 5]
    assert read_layout(layout)[1].layers == {}


def test_groups_may_be_a_mapping(pool: SharedPool) -> None:
    layout = make(pool.address)
    expected = read_layout(layout)[0]
    mapped: Any = {group.layer_group_id: group for group in layout.groups}
    layout.groups = mapped
    assert read_layout(layout)[0] == expected


def test_keys_alone_may_be_a_latent(pool: SharedPool) -> None:
    region = Region(pool.address, 64, 64, buffers=[(0, "key", 1)])
    shape, _ = read_layout(Layout(16, [Group(0, [0], None, [region])]))
    assert shape.kv_factor == 1
    assert not shape.groups[0].is_replicated


@pytest.mark.parametrize("buffers", [[], [(0, "key", 1), (0, "key_block_scale", 1)]])
def test_what_is_no_key_or_value_is_not_taken_for_a_latent(
    pool: SharedPool, buffers: list[Any]
) -> None:
    region = Region(pool.address, 64, 64, buffers=buffers)
    shape, _ = read_layout(Layout(16, [Group(0, [0], None, [region])]))
    assert shape.kv_factor == 0


def test_replicated_regions_make_a_replicated_group(pool: SharedPool) -> None:
    region = Region(pool.address, 64, 64, buffers=[(0, "key", 1)])
    group: Any = Group(0, [0], None, [])
    group.replicated_regions = [region]
    assert read_layout(Layout(16, [group]))[0].groups[0].is_replicated
    # Bytes of both kinds in one page: each rank stores all of its own.
    group.regions = [replace(region, base=region.base + 1024)]
    shape, memory = read_layout(Layout(16, [group]))
    assert not shape.groups[0].is_replicated
    assert shape.groups[0].page_bytes == 128
    assert len(memory.groups[0].parts) == 2


def test_a_region_that_is_named_as_both_is_there_once(pool: SharedPool) -> None:
    first, second = (Region(pool.address + at, 64, 64) for at in (0, 1024))
    group = Group(0, [0], None, [first, second], [first])
    shape, memory = read_layout(Layout(16, [group]))
    assert shape.groups[0].page_bytes == 128
    assert [part.address for part in memory.groups[0].parts] == [second.base, first.base]
    assert not shape.groups[0].is_replicated
    group.replicated_regions = [first, second]
    assert read_layout(Layout(16, [group]))[0].groups[0].is_replicated


def test_private_memory_is_reached_but_not_exported() -> None:
    array = np.zeros(4096, np.uint8)
    _, memory = read_layout(make(array.ctypes.data))
    assert memory.export is None
    assert "shared_pool" in memory.why_private
    memory.groups[1].parts[0].host[0] = 9
    assert array.any()


def test_regions_in_two_pools_are_private(pool: SharedPool) -> None:
    other = SharedPool.create(4096)
    layout = make(pool.address)
    layout.groups[0].regions[0].base = other.address
    _, memory = read_layout(layout)
    assert memory.export is None
    assert "several shared pools" in memory.why_private


@pytest.mark.parametrize("kind", [MemoryKind.VIRTUAL, MemoryKind.DEVICE])
def test_regions_of_a_device_are_parts_without_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: MemoryKind
) -> None:
    with simulated(monkeypatch, tmp_path) as gpu:
        layout = make(gpu.malloc(4096, kind))
        shape, memory = read_layout(layout)
        assert memory.device is not None
        assert (memory.export, memory.why_private) == (None, "")
        keys = layout.groups[1].regions[0]
        part = memory.groups[0].parts[0]
        assert (part.flat, part.address, part.span_bytes) == (None, keys.base, keys.span)
        assert (part.size_bytes, part.stride_bytes) == (keys.size, keys.stride)
        assert shape.groups[0].page_bytes == memory.groups[0].page_bytes
        assert memory.is_layered


def test_regions_half_on_a_device_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pool: SharedPool
) -> None:
    with simulated(monkeypatch, tmp_path) as gpu:
        layout = make(pool.address)
        layout.groups[0].regions[0].base = gpu.malloc(4096)
        with pytest.raises(UncachedError, match="several devices"):
            read_layout(layout)


def test_reserved_device_memory_is_out_of_reach() -> None:
    with pytest.raises(UncachedError, match="cannot reach device memory"):
        read_layout(make(4096))


def test_regions_may_interleave(pool: SharedPool) -> None:
    """K and V side by side in each slot of one pool, as regions of their own, to the byte."""
    layout = make(pool.address)
    keys, values = layout.groups[1].regions
    keys.stride = values.stride = 128
    values.base = keys.base + 64
    layout.groups[0].regions[0].base = values.base + values.span
    pool.view[:] = np.arange(pool.num_bytes) % 251
    shape, memory = read_layout(layout)
    assert shape.pools == (0, 1)
    begin = keys.base - pool.address
    parts = memory.groups[0].parts
    for page in range(SLOTS):
        found = [part.host[128 * page :][:64] for part in parts]
        assert np.array_equal(np.concatenate(found), pool.view[begin + 128 * page :][:128])


def test_groups_may_take_their_pages_from_one_pool(pool: SharedPool) -> None:
    """As the host's groups of equal page sizes do: a page belongs to one of them at a time."""
    region = Region(pool.address + 512, 64, 80, buffers=both(0))
    groups = [
        Group(0, [0], None, [region]),
        Group(1, [1], 8, [Region(pool.address, 64, 64, buffers=both(1))]),
        Group(2, [2], 16, [replace(region, buffers=both(2))]),
        Group(3, [3], 32, [replace(region, size=48, buffers=both(3))]),
    ]
    shape, memory = read_layout(Layout(16, groups))
    assert shape.pools == (0, 1, 0, 0)
    assert [group.page_bytes for group in shape.groups] == [64, 64, 64, 48]
    assert memory.export is not None


def test_pools_that_meet_in_a_third_group_are_one(pool: SharedPool) -> None:
    first, second = Region(pool.address, 64, 64), Region(pool.address + 1024, 64, 64)
    groups = [
        Group(0, [0], None, [first]),
        Group(1, [1], None, [second]),
        Group(2, [2], None, [replace(first), replace(second)]),
    ]
    assert read_layout(Layout(16, groups))[0].pools == (0, 0, 0)


@given(
    st.sampled_from(["size", "role", "order", "layer", "expansion", "replicated"]),
    st.integers(0, 1),
)
def test_what_decides_where_a_byte_belongs_is_identity(change: str, gap: int) -> None:
    pool = SharedPool.create(4096)
    plain = make(pool.address)
    moved = make(pool.address + 64 * gap)
    assert read_layout(plain)[0].layout == read_layout(moved)[0].layout
    region = moved.groups[0].regions[0]
    if change == "size":
        region.size = 44
    elif change == "role":
        region.buffers = [(1, "key", 1), (1, "index_key", 1)]
    elif change == "expansion":
        region.buffers = [(1, "key", 2), (1, "value", 2)]
    elif change == "replicated":
        moved.groups[0].replicated_regions, moved.groups[0].regions = [region], []
    elif change == "order":
        region.buffers = both(1)[::-1]
    else:
        moved.groups[0].layer_ids, region.buffers = [3], both(3)
    assert read_layout(plain)[0].layout != read_layout(moved)[0].layout
