"""Pages of several regions arrive whole, layer by layer too; a bad page id copies nothing."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.geometry import Geometry, GroupGeometry
from adapter.journal import Journal
from adapter.pagememory import GroupPages, LayerSlice, PageMemory, PagePart
from adapter.ring import StagingRing
from adapter.stagedrun import StagedRun
from adapter.staging import Stager, stage_layer, stage_pages
from protocol.ids import ShardIndex
from tests.adapter.gpu import simulated

PAGES = 6


def memory(sizes: tuple[int, ...] = (24, 40), gap: int = 8, layers: int = 4) -> PageMemory:
    """One group of random bytes; a page is one part in each region, layers lie across them."""
    rng = np.random.default_rng(7)
    parts = tuple(
        PagePart(rng.integers(0, 256, (size + gap) * PAGES, dtype=np.uint8), size, size + gap)
        for size in sizes
    )
    step = sum(sizes) // layers
    slices = {
        layer: (LayerSlice(group=0, start_byte=layer * step, num_bytes=step),)
        for layer in range(layers)
    }
    return PageMemory((GroupPages(parts, PAGES),), None, "a test", slices)


def ring_for(pages: PageMemory) -> StagingRing:
    group = GroupGeometry(PAGES, pages.groups[0].page_bytes)
    return StagingRing(Geometry(4, 1, (group,), (ShardIndex(0),)))


def page_of(pages: PageMemory, page: int) -> bytes:
    parts = pages.groups[0].parts
    return b"".join(
        part.host[page * part.stride_bytes :][: part.size_bytes].tobytes() for part in parts
    )


@settings(max_examples=40, deadline=None)
@given(
    wanted=st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=PAGES),
    sizes=st.sampled_from([(64,), (24, 40), (8, 40, 16)]),
    gap=st.sampled_from([0, 8]),
    by_layer=st.booleans(),
)
def test_pages_arrive_whole(
    wanted: list[int], sizes: tuple[int, ...], gap: int, by_layer: bool
) -> None:
    pages = memory(sizes, gap)
    ring = ring_for(pages)
    lot = ring.take(0, len(wanted))
    assert lot is not None
    ids = np.array(wanted, dtype=np.int32)
    if by_layer:
        for layer in (2, 0, 3, 1):
            stage_layer(pages, ring, lot, ids, pages.layers[layer])
    else:
        stage_pages(pages, ring, lot, ids)
    for page, slot in zip(wanted, lot.slots.tolist(), strict=True):
        assert ring.page(0, slot).tobytes() == page_of(pages, page)


def test_one_layer_touches_only_its_bytes() -> None:
    pages = memory()
    ring = ring_for(pages)
    lot = ring.take(0, 1)
    assert lot is not None
    stage_layer(pages, ring, lot, np.array([5], dtype=np.int32), pages.layers[1])
    staged, whole = ring.page(0, int(lot.slots[0])), page_of(pages, 5)
    assert staged[16:32].tobytes() == whole[16:32]
    assert not staged[:16].any()
    assert not staged[32:].any()


def test_slices_of_other_groups_are_not_its_own() -> None:
    pages = memory()
    ring = ring_for(pages)
    lot = ring.take(0, 1)
    assert lot is not None
    stage_layer(pages, ring, lot, np.zeros(1, dtype=np.int32), [LayerSlice(1, 0, 64)])
    assert not ring.page(0, int(lot.slots[0])).any()


@pytest.mark.parametrize("bad", [-1, PAGES])
def test_a_page_outside_is_an_error_and_the_stager_survives_it(bad: int) -> None:
    pages = memory()
    ring = ring_for(pages)
    lot = ring.take(0, 2)
    assert lot is not None
    ids = np.array([0, bad], dtype=np.int32)
    with pytest.raises(IndexError):
        stage_pages(pages, ring, lot, ids)
    with pytest.raises(IndexError):
        stage_layer(pages, ring, lot, ids, pages.layers[0])
    assert not ring.page(0, int(lot.slots[0])).any()
    journal = Journal(logging.getLogger("test"))
    stager = Stager(pages, ring, journal)
    run = StagedRun(1, 0, 2, ids, lot, bind=1)
    assert not stager.stage(lot, ids)
    assert not stager.stage_layer(0, [run])
    assert not stager.stage_layer(99, [run])
    assert journal.counters()["stagings_failed"] == 3
    assert stager.stage(lot, np.array([3, 4], dtype=np.int32))


def test_pages_of_a_device_go_by_its_stream_and_bad_ones_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = memory()
    with simulated(monkeypatch, tmp_path) as gpu:
        parts = []
        for part in host.groups[0].parts:
            address = gpu.malloc(part.span_bytes)
            gpu.content(address, part.span_bytes)[:] = part.host
            parts.append(
                PagePart.on_device(address, part.span_bytes, part.size_bytes, part.stride_bytes)
            )
        pages = replace(host, groups=(GroupPages(tuple(parts), PAGES),), device=gpu.seam)
        group = GroupGeometry(PAGES, pages.groups[0].page_bytes)
        ring = StagingRing(Geometry(4, 1, (group,), (ShardIndex(0),)), device=gpu.seam)
        journal = Journal(logging.getLogger("test"))
        stager, lot = Stager(pages, ring, journal), ring.take(0, 2)
        assert lot is not None
        assert not stager.stage(lot, np.array([0, PAGES], dtype=np.int32))
        assert not stager.stage(lot, np.array([-1, 0], dtype=np.int32))
        assert journal.counters()["stagings_failed"] == 2
        assert not ring.page(0, int(lot.slots[0])).any()
        ids = np.array([5, 2], dtype=np.int32)
        for layer in (3, 1, 0, 2):
            assert stager.stage_layer(layer, [StagedRun(1, 0, 2, ids, lot, bind=1)])
        for page, slot in zip((5, 2), lot.slots.tolist(), strict=True):
            assert ring.page(0, slot).tobytes() == page_of(host, page)
        assert stager.stage(lot, ids[::-1].copy())
        for page, slot in zip((2, 5), lot.slots.tolist(), strict=True):
            assert ring.page(0, slot).tobytes() == page_of(host, page)
