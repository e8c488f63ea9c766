"""Pages of a device arrive whole in their slots, however the device dallies; else nothing does."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter import ring as ring_module
from adapter.geometry import Geometry, GroupGeometry
from adapter.pagememory import GroupPages, PagePart
from adapter.ring import StagingRing
from adapter.ringcopies import RingCopies, batch_of_pages
from protocol.device.interface import Batch, DeviceError, Direction
from protocol.device.simulated.faults import Fault
from protocol.device.simulated.streams import SimulatedStream
from protocol.ids import ShardIndex
from tests.adapter.gpu import Gpu, simulated
from tests.adapter.responder import until

PAGES, SIZES, GAP = 16, (1024, 3072), 512


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    kept = len(ring_module._KEPT)
    with simulated(monkeypatch, tmp_path) as gpu:
        yield gpu
    del ring_module._KEPT[kept:]


class Rig:
    """Pages of two regions on a device, random bytes, and a ring that takes all of them."""

    def __init__(self, gpu: Gpu, limit_s: float = 30.0) -> None:
        parts = []
        self.bytes = []
        for at, size in enumerate(SIZES):
            span = (size + GAP) * (PAGES - 1) + size
            address = gpu.malloc(span)
            content = gpu.content(address, span)
            content[:] = np.random.default_rng(at).integers(0, 256, span, np.uint8)
            self.bytes.append(content)
            parts.append(PagePart.on_device(address, span, size, size + GAP))
        self.group = GroupPages(tuple(parts), PAGES)
        geometry = GroupGeometry(PAGES, self.group.page_bytes)
        self.ring = StagingRing(Geometry(4, 1, (geometry,), (ShardIndex(0),)), device=gpu.seam)
        self.copies = RingCopies(gpu.seam, self.ring, limit_s)

    def page(self, page: int) -> bytes:
        strides = [size + GAP for size in SIZES]
        return b"".join(
            content[page * stride :][:size].tobytes()
            for content, stride, size in zip(self.bytes, strides, SIZES, strict=True)
        )

    def stage(self, pages: list[int], start: int = 0, num_bytes: int = sum(SIZES)) -> list[bytes]:
        """Copies a run of each page's bytes; what stands in the slots then."""
        lot = self.ring.take(0, len(pages))
        assert lot is not None
        cuts = self.group.cuts(start, num_bytes)
        self.copies.run(self.group, cuts, lot, np.array(pages, dtype=np.int32))
        return [self.ring.page(0, slot).tobytes() for slot in lot.slots.tolist()]


def test_pages_are_in_their_slots_on_return_and_may_be_overwritten(gpu: Gpu) -> None:
    rig = Rig(gpu)
    for pages in ([3], [5, 4, 11], [0, 1, 2], [7]):
        expected = [rig.page(page) for page in pages]
        found = rig.stage(pages)
        for content in rig.bytes:  # the host hands the pages out again
            content[:] = np.random.default_rng(pages[0]).integers(0, 256, content.size, np.uint8)
        assert found == expected


def test_a_run_of_bytes_touches_nothing_else(gpu: Gpu) -> None:
    rig = Rig(gpu)
    (slot,) = rig.stage([9], start=900, num_bytes=300)
    assert slot[900:1200] == rig.page(9)[900:1200]
    assert not any(slot[:900])
    assert not any(slot[1200:])


def test_its_stream_goes_with_it(gpu: Gpu) -> None:
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    rig = Rig(gpu)
    rig.stage([1])
    assert set(threading.enumerate()) - before
    del rig
    gc.collect()
    until(lambda: not set(threading.enumerate()) - before)


def test_nothing_to_copy_is_no_copy(gpu: Gpu) -> None:
    rig = Rig(gpu)
    gpu.faulty(Fault("copy", "cudaErrorUnknown"))
    lot = rig.ring.take(0, 1)
    assert lot is not None
    rig.copies.run(rig.group, (), lot, np.zeros(1, np.int32))
    rig.copies.run(rig.group, rig.group.whole, lot, np.zeros(0, np.int32))


def test_a_copy_that_was_not_queued_costs_itself_alone(gpu: Gpu) -> None:
    rig = Rig(gpu)
    gpu.faulty(Fault("copy", "cudaErrorInvalidValue", times=1))
    with pytest.raises(DeviceError, match="cudaErrorInvalidValue"):
        rig.stage([1])
    assert rig.stage([2]) == [rig.page(2)]
    assert not ring_module._KEPT


def test_of_a_copy_that_was_queued_in_part_nothing_comes_later(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(gpu)
    copy = gpu.device.copy

    def half(stream: SimulatedStream, batch: Batch, way: Direction) -> None:
        stream.enqueue(lambda: time.sleep(0.05))
        copy(stream, Batch(batch.targets[:1], batch.sources[:1], batch.sizes[:1]), way)
        raise DeviceError("cudaErrorInvalidValue", "the other half")

    lot = rig.ring.take(0, 1)
    assert lot is not None
    with monkeypatch.context() as patch:
        patch.setattr(gpu.device, "copy", half)
        with pytest.raises(DeviceError, match="the other half"):
            rig.copies.run(rig.group, rig.group.whole, lot, np.array([1], dtype=np.int32))
    assert rig.ring.page(0, int(lot.slots[0]))[: SIZES[0]].tobytes() == rig.page(1)[: SIZES[0]]
    assert rig.stage([2]) == [rig.page(2)]
    assert not ring_module._KEPT


@pytest.mark.parametrize("call", ["record", "query", "run"])
def test_after_copies_of_unknown_end_nothing_goes_through_the_ring(gpu: Gpu, call: str) -> None:
    rig = Rig(gpu)
    gpu.faulty(Fault(call, "cudaErrorIllegalAddress", times=1))
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress"):
        rig.stage([1])
    gpu.faulty()
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress"):
        rig.stage([2])
    assert len(ring_module._KEPT) == 1  # what was queued may still write into it


def test_a_device_that_hangs_is_not_waited_for_beyond_the_limit(gpu: Gpu) -> None:
    rig = Rig(gpu, limit_s=0.05)
    gpu.faulty(Fault("run", "", hang_s=5.0, times=1))
    begin_s = time.monotonic()
    with pytest.raises(DeviceError, match="not done after"):
        rig.stage([1])
    assert time.monotonic() - begin_s < 4
    gpu.faulty()
    with pytest.raises(DeviceError, match="not done after"):
        rig.stage([2])
    assert len(ring_module._KEPT) == 1


@settings(max_examples=50, deadline=None)
@given(
    pages=st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=PAGES, unique=True),
    start=st.integers(0, sum(SIZES) - 1),
    data=st.data(),
)
def test_a_batch_is_the_cuts_of_each_page(
    pages: list[int], start: int, data: st.DataObject
) -> None:
    num_bytes = data.draw(st.integers(1, sum(SIZES) - start))
    spans = [(size + GAP) * (PAGES - 1) + size for size in SIZES]
    parts = tuple(
        PagePart.on_device(1_000_000 * (at + 1), span, size, size + GAP)
        for at, (size, span) in enumerate(zip(SIZES, spans, strict=True))
    )
    group = GroupPages(parts, PAGES)
    targets = np.arange(len(pages), dtype=np.int64) * sum(SIZES)
    batch = batch_of_pages(
        group, group.cuts(start, num_bytes), targets, np.array(pages, dtype=np.int32)
    )
    expected = set()
    for at, page in enumerate(pages):
        begin = 0
        for part in parts:
            first = max(start, begin)
            stop = min(start + num_bytes, begin + part.size_bytes)
            if first < stop:
                source = part.address + page * part.stride_bytes + first - begin
                expected.add((at * sum(SIZES) + first, source, stop - first))
            begin += part.size_bytes
    columns = (batch.targets.tolist(), batch.sources.tolist(), batch.sizes.tolist())
    assert set(zip(*columns, strict=True)) == expected
    assert batch.num_bytes == num_bytes * len(pages)
