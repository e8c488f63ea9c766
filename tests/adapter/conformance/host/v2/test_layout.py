from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.payload import PayloadModel  # noqa: E402
from adapter.conformance.host.v2.layout import (  # noqa: E402
    BAD_PAGE_INDEX,
    KvCacheLayout,
    RegionStyle,
    group_layers,
    v2_memory,
)
from adapter.pages import find_pool  # noqa: E402

pytestmark = pytest.mark.torch

PAGES = 5
STYLES: list[RegionStyle] = ["joined", "apart"]


def memory(style: RegionStyle, *, kv_factor: int = 2, private: bool = True) -> Any:
    model = PayloadModel(4, bytes_per_token=3, num_layers=3, windows=(0, 8, 0), kv_factor=kv_factor)
    return v2_memory(model, PAGES, 4, private=private, style=style)


def test_layers_are_grouped_by_window_full_attention_first() -> None:
    assert group_layers((8, 0, 8, 4)) == [(0, (1,)), (4, (3,)), (8, (0, 2))]
    assert group_layers((0, 0)) == [(0, (0, 1))]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kv_factor", [1, 2])
def test_every_byte_of_a_page_is_at_its_address(style: RegionStyle, kv_factor: int) -> None:
    made = memory(style, kv_factor=kv_factor)
    layout: KvCacheLayout = made.registered
    assert [(g.layer_ids, g.window_size) for g in layout.groups] == [((0, 2), None), ((1,), 8)]
    for group in layout.groups:
        page_bytes = len(group.layer_ids) * kv_factor * 12
        assert sum(region.size for region in group.regions) == page_bytes
        for region in group.regions:
            assert region.size == len(region.buffers) * 12
            rows = region.as_tensor(layout.dtype)
            assert rows.shape == (PAGES, region.size)
            for slot in range(PAGES):
                assert rows[slot].data_ptr() == region.address_of(slot)
                assert region.slot_tensor(slot).data_ptr() == region.address_of(slot)
                assert region.slot_tensor(slot).nbytes == region.size


@pytest.mark.parametrize("style", STYLES)
def test_layers_do_not_overlap_and_leave_no_byte_of_a_page(style: RegionStyle) -> None:
    made = memory(style)
    for group in made.groups:
        group.fill(range(PAGES), 0xFF)
    for layer, pages in enumerate(made.layers):
        for part, rows in enumerate(pages.parts):
            for page in range(PAGES):
                rows[page].fill_(16 * layer + 4 * part)
    for group in made.registered.groups:
        for region in group.regions:
            for slot in range(PAGES):
                for at, buffer in enumerate(region.buffers):
                    part = ("key", "value").index(buffer.role)
                    held = region.slot_tensor(slot)[at * 12 : (at + 1) * 12]
                    assert set(held.tolist()) == {16 * buffer.layer_id + 4 * part}


def test_apart_has_gaps_and_begins_inside_the_span() -> None:
    layout = memory("apart", private=False).registered
    pool = find_pool(layout.groups[0].regions[0].base, 1)
    assert pool is not None
    for group in layout.groups:
        assert [{b.role for b in region.buffers} for region in group.regions] == [
            {"key"},
            {"value"},
        ]
        for region in group.regions:
            assert region.size < region.stride
            assert region.base > pool.address
            last = region.address_of(PAGES - 1) + region.size
            assert last <= pool.address + pool.num_bytes


def test_the_gaps_are_never_written() -> None:
    made = memory("apart")
    region = made.registered.groups[0].regions[0]
    span = region.rows.as_strided((region.stride * (PAGES - 1),), (1,))
    span.fill_(3)
    made.groups[0].fill(range(PAGES), 9)
    assert (span == 9).sum() == region.size * (PAGES - 1)


def test_private_memory_is_no_shared_pool() -> None:
    base = memory("joined").registered.groups[0].regions[0].base
    assert find_pool(base, 1) is None


def test_one_dense_group_is_a_v1_pool() -> None:
    model = PayloadModel(4, bytes_per_token=3, num_layers=3)
    made = v2_memory(model, PAGES, 4, private=True, style="joined")
    pool = made.registered.as_single_pool_tensor()
    assert pool.shape == (PAGES, 3, 2, 12)
    made.layers[1].parts[1][4].fill_(77)
    assert set(pool[4, 1, 1].tolist()) == {77}
    for style in STYLES:
        with pytest.raises(ValueError, match="several groups"):
            memory(style).registered.as_single_pool_tensor()
    apart = v2_memory(model, PAGES, 4, private=True, style="apart").registered
    with pytest.raises(ValueError, match="gaps"):
        apart.as_single_pool_tensor()


def test_no_page_is_a_valid_subscript_the_last_page() -> None:
    group = memory("joined").registered.groups[0]
    rows = group.regions[0].rows
    assert rows[BAD_PAGE_INDEX].data_ptr() == rows[PAGES - 1].data_ptr()
    assert group.valid_page_slots([3, BAD_PAGE_INDEX, 0]) == [3, 0]


def test_a_float_cache_has_its_own_element_type() -> None:
    from dataclasses import replace

    from adapter.conformance.host.model import Transformer
    from adapter.conformance.host.weights import SLIDING, make_weights

    config = replace(SLIDING, max_position_embeddings=64)
    model = Transformer(config, make_weights(config), 16, kv_dtype="float8_e4m3fn")
    layout = v2_memory(model, 3, 16, private=True, style="apart").registered
    assert layout.dtype is torch.float8_e4m3fn
    assert layout.groups[0].regions[0].size == 2 * 2 * 16 * 16
