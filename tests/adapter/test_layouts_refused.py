"""Layouts that are refused: each with one line, and never an exception of another kind."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.layouts import read_layout
from adapter.pages import SharedPool
from adapter.refusals import UncachedError
from protocol import limits
from tests.adapter.test_layouts import SLOTS, Group, Layout, Region, make


@pytest.fixture
def pool() -> SharedPool:
    return SharedPool.create(4096)


def numbered(layout: Layout) -> None:
    layout.groups[0].layer_group_id = 2


def no_groups(layout: Layout) -> None:
    layout.groups = []


def twice(layout: Layout) -> None:
    layout.groups[0].layer_ids = [0, 1]


def odd_slots(layout: Layout) -> None:
    layout.groups[1].regions[0].num_slots = 4


def overlapping(layout: Layout) -> None:
    layout.groups[0].regions[0].stride = 40


def no_layers(layout: Layout) -> None:
    layout.groups[0].layer_ids = []


def no_regions(layout: Layout) -> None:
    layout.groups[0].regions = []


def no_base(layout: Layout) -> None:
    layout.groups[0].regions[0].base = None


def negative_window(layout: Layout) -> None:
    layout.groups[0].window_size = -1


def endless_window(layout: Layout) -> None:
    layout.groups[0].window_size = 1 << 32


def negative_layer(layout: Layout) -> None:
    layout.groups[0].layer_ids = [-1]


def far_layer(layout: Layout) -> None:
    layout.groups[0].layer_ids = [1 << 32]


def many_layers(layout: Layout) -> None:
    layout.groups[0].layer_ids = list(range(3, 4 + limits.MAX_LAYERS))


def many_groups(layout: Layout) -> None:
    region = layout.groups[0].regions[0]
    layout.groups += [
        Group(number, [number + 1], None, [region]) for number in range(2, 1 + limits.MAX_GROUPS)
    ]


def many_regions(layout: Layout) -> None:
    layout.groups[0].regions *= limits.MAX_REGIONS + 1


def many_regions_in_all(layout: Layout) -> None:
    layout.groups[0].regions *= limits.MAX_REGIONS - 1


def large_pages(layout: Layout) -> None:
    region = layout.groups[0].regions[0]
    region.size = region.stride = limits.MAX_PAGE_BYTES + 1


def many_pages(layout: Layout) -> None:
    layout.groups[0].regions[0].num_slots = limits.MAX_PAGES + 1


def a_switch_for_a_number(layout: Layout) -> None:
    layout.groups[0].regions[0].num_slots = True


def half_a_token(layout: Layout) -> None:
    layout.groups[0].window_size = 0.5


def half_a_layer(layout: Layout) -> None:
    layout.groups[0].layer_ids = [0.5]


def same_bytes(layout: Layout) -> None:
    keys, values = layout.groups[1].regions
    values.base, values.stride = keys.base, keys.stride


def one_byte_behind(layout: Layout) -> None:
    keys, values = layout.groups[1].regions
    values.base, values.stride = keys.base + 63, keys.stride


def one_byte_before(layout: Layout) -> None:
    keys, values = layout.groups[1].regions
    values.base, values.stride = keys.base + 80 + 80 - 63, keys.stride


def unlike_strides(layout: Layout) -> None:
    """The first pages are apart, the second ones are not."""
    keys, values = layout.groups[1].regions
    keys.stride, values.base, values.stride = 160, keys.base + 80, 96


def groups_that_are_shifted(layout: Layout) -> None:
    keys = layout.groups[1].regions[0]
    window = layout.groups[0].regions[0]
    window.base, window.stride, window.num_slots = keys.base + 80, 80, SLOTS


def groups_of_unlike_pools(layout: Layout) -> None:
    keys = layout.groups[1].regions[0]
    layout.groups[0].regions[0].base, layout.groups[0].regions[0].stride = keys.base, 80


def own_block_size(layout: Layout) -> None:
    layout.groups[0].tokens_per_block = 32


def large_blocks(layout: Layout) -> None:
    layout.tokens_per_block = 1 << 30


def odd_buffer(layout: Layout) -> None:
    layout.groups[0].regions[0].buffers = [("first", "key", 1)]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (numbered, "numbered"),
        (no_groups, "0 layer groups"),
        (twice, "virtual attention layers"),
        (odd_slots, "number of pages"),
        (overlapping, "overlap"),
        (no_layers, "no layers"),
        (no_regions, "0 regions"),
        (no_base, "base is None"),
        (negative_window, "window of -1"),
        (endless_window, "window of 4294967296"),
        (negative_layer, "numbers that are none"),
        (far_layer, "numbers that are none"),
        (many_layers, "numbers that are none"),
        (many_groups, "65 layer groups"),
        (many_regions, "2049 regions"),
        (many_regions_in_all, "the layout has 2049 regions"),
        (large_pages, "1073741825 bytes: too large"),
        (many_pages, "2147483648 pages"),
        (a_switch_for_a_number, "num_slots is True"),
        (half_a_token, "not understood"),
        (half_a_layer, "not understood"),
        (same_bytes, "layer group 0 overlap"),
        (one_byte_behind, "layer group 0 overlap"),
        (one_byte_before, "layer group 0 overlap"),
        (unlike_strides, "layer group 0 overlap"),
        (groups_that_are_shifted, "layer groups 0 and 1 overlap"),
        (groups_of_unlike_pools, "layer groups 0 and 1 overlap"),
        (own_block_size, "blocks of 32"),
        (large_blocks, "too large"),
        (odd_buffer, "not understood"),
    ],
)
def test_layouts_that_are_not_understood(
    pool: SharedPool, spoil: Callable[[Layout], None], words: str
) -> None:
    layout = make(pool.address)
    spoil(layout)
    with pytest.raises(UncachedError, match=words) as caught:
        read_layout(layout)
    assert "\n" not in str(caught.value)


@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(0, 40), st.integers(1, 5), st.integers(1, 5)
)
def test_regions_of_one_group_are_apart_or_refused(
    size: int, other: int, shift: int, gap: int, slots: int
) -> None:
    pool = SharedPool.create(4096)
    stride = max(size, other) + gap
    first = Region(pool.address, size, stride, slots)
    second = Region(pool.address + shift, other, stride, slots)
    used = [
        region.base + stride * page + byte
        for region in (first, second)
        for page in range(slots)
        for byte in range(region.size)
    ]
    layout = Layout(16, [Group(0, [0], None, [first, second])])
    if len(set(used)) == len(used):
        assert len(read_layout(layout)[1].groups[0].parts) == 2
    else:
        with pytest.raises(UncachedError, match="overlap"):
            read_layout(layout)


def test_an_object_without_the_attributes() -> None:
    with pytest.raises(UncachedError, match="tokens_per_block"):
        read_layout(SimpleNamespace())
    with pytest.raises(UncachedError, match="no groups"):
        read_layout(SimpleNamespace(tokens_per_block=16))


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        16,
        1 << 31,
        1 << 64,
        0.5,
        float("nan"),
        "",
        "key",
        [],
        [None],
        (1, 2),
        {},
    ]
)
PLACES = [
    *((Layout, name) for name in ("tokens_per_block", "groups", "dtype", "device")),
    *((Group, name) for name in ("layer_group_id", "layer_ids", "window_size", "regions")),
    *((Group, name) for name in ("replicated_regions", "tokens_per_block")),
    *((Region, name) for name in ("base", "size", "stride", "num_slots", "buffers")),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 2), ODD), min_size=1, max_size=3))
def test_whatever_a_layout_says_is_understood_or_refused_in_one_line(
    changes: list[tuple[tuple[type, str], int, Any]],
) -> None:
    pool = SharedPool.create(4096)
    layout: Any = make(pool.address)
    groups = list(layout.groups)
    regions = [region for group in groups for region in group.regions]
    for (kind, name), at, value in changes:
        owners = {Layout: [layout], Group: groups, Region: regions}[kind]
        setattr(owners[at % len(owners)], name, value)
    found, why = None, ""
    try:
        found = read_layout(layout)
    except UncachedError as error:
        why = str(error)
    if found is None:
        assert why
        assert "\n" not in why
        return
    shape, memory = found
    assert len(memory.groups) == len(shape.groups) == len(shape.pools)
    for told, pages in zip(shape.groups, memory.groups, strict=True):
        assert (pages.num_pages, pages.page_bytes) == (told.num_pages, told.page_bytes)
        for part in pages.parts:
            first, end = part.address, part.address + part.span_bytes
            assert pool.address <= first < end <= pool.address + pool.num_bytes
