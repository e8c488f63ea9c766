"""What the server is given: the pool itself where that can be, else a ring, and a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.layouts import read_layout
from adapter.pagememory import PageMemory
from adapter.pages import SharedPool
from adapter.poolshape import read_tensor
from adapter.refusals import UncachedError
from adapter.sharing import AUTO, IPC, RING, Shared, choose
from protocol.device.interface import MemoryKind
from protocol.device.simulated.faults import Fault
from protocol.device.simulated.settings import uuid_of
from protocol.layout import check_pool
from tests.adapter.gpu import Gpu, simulated
from tests.adapter.hostlike import geometry
from tests.adapter.test_identity import FakeTensor
from tests.adapter.test_layouts import Group, Layout, Region, both

PAGES, PAGE = 6, 4096
GEOMETRY = geometry(num_pages=PAGES, page_bytes=PAGE)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    with simulated(monkeypatch, tmp_path) as gpu:
        yield gpu


def tensor_over(content: Any) -> FakeTensor:
    """A V1 pool of six pages over the first bytes."""
    return FakeTensor(content[: PAGES * PAGE].view(np.float32).reshape(PAGES, 2, 2, PAGE // 16))


def device_pool(gpu: Gpu, kind: MemoryKind = MemoryKind.DEVICE, offset: int = 0) -> PageMemory:
    address = gpu.malloc(offset + PAGES * PAGE + 512, kind)
    return read_tensor(tensor_over(gpu.content(address + offset, PAGES * PAGE)))[1]


def layout_pool(gpu: Gpu, kind: MemoryKind, count: int = 1) -> PageMemory:
    """A V2 cache of one group: two regions with gaps, in one allocation or in two."""
    size, stride = PAGE // 2, PAGE // 2 + 256
    bases = [gpu.malloc(512 + 2 * stride * PAGES, kind) for _ in range(count)]
    regions = [
        Region(bases[0] + 512, size, stride, PAGES, [(0, "key", 1)]),
        Region(bases[-1] + 512 + stride * PAGES, size, stride, PAGES, [(0, "value", 1)]),
    ]
    return read_layout(Layout(4, [Group(0, [0], None, regions)]))[1]


def is_locked(gpu: Gpu, shared: Shared) -> bool:
    """Whether the device may write the whole ring."""
    assert shared.ring is not None
    place = gpu.device.place(shared.ring.address)
    return bool(
        place is not None
        and place.kind is MemoryKind.HOST
        and place.base + place.num_bytes >= shared.ring.address + shared.ring.num_bytes
    )


def test_a_pool_in_one_allocation_is_exported_as_it_lies_there(gpu: Gpu) -> None:
    memory = device_pool(gpu, offset=1536)
    assert memory.device is not None
    assert [part.flat for part in memory.groups[0].parts] == [None]
    shared = choose(memory, GEOMETRY, AUTO)
    assert shared.ring is None
    assert shared.fd is None
    handle = shared.handle
    assert handle is not None
    assert (handle.base_offset_bytes, handle.size_bytes) == (1536, PAGES * PAGE)
    assert handle.device_uuid == uuid_of(0)
    (pool,) = shared.pools
    check_pool(pool, handle.size_bytes, PAGE)
    assert (pool.num_pages, pool.regions[0].offset_bytes) == (PAGES, 0)
    assert shared.may_stage
    assert "exported" in shared.says


def test_regions_in_one_allocation_are_exported_with_their_gaps(gpu: Gpu) -> None:
    memory = layout_pool(gpu, MemoryKind.DEVICE)
    shared = choose(memory, GEOMETRY, AUTO)
    handle = shared.handle
    assert handle is not None
    assert handle.base_offset_bytes == 512
    (pool,) = shared.pools
    check_pool(pool, handle.size_bytes, PAGE)
    first, second = pool.regions
    assert (first.offset_bytes, first.stride_bytes) == (0, PAGE // 2 + 256)
    begins = [part.address for part in memory.groups[0].parts]
    assert second.offset_bytes == begins[1] - begins[0]


@pytest.mark.parametrize(
    ("kind", "why"),
    [(MemoryKind.VIRTUAL, "virtual memory"), (MemoryKind.MANAGED, "managed memory")],
)
def test_memory_of_other_kinds_goes_through_a_locked_ring(
    gpu: Gpu, kind: MemoryKind, why: str
) -> None:
    for memory in (device_pool(gpu, kind), layout_pool(gpu, kind)):
        shared = choose(memory, GEOMETRY, AUTO)
        assert shared.handle is None
        assert is_locked(gpu, shared)
        assert why in shared.says
        assert "page-locked staging ring" in shared.says
        assert not shared.may_stage


def test_several_allocations_go_through_the_ring(gpu: Gpu) -> None:
    shared = choose(layout_pool(gpu, MemoryKind.DEVICE, count=2), GEOMETRY, AUTO)
    assert shared.handle is None
    assert "several allocations" in shared.says


def test_an_export_that_fails_becomes_a_ring_with_the_devices_reason(gpu: Gpu) -> None:
    memory = device_pool(gpu)
    gpu.faulty(Fault("export", "cudaErrorNotSupported"))
    shared = choose(memory, GEOMETRY, AUTO)
    assert is_locked(gpu, shared)
    assert "cudaErrorNotSupported" in shared.says


def test_the_ring_can_be_asked_for_and_be_ruled_out(gpu: Gpu) -> None:
    memory = device_pool(gpu)
    shared = choose(memory, GEOMETRY, RING)
    assert is_locked(gpu, shared)
    assert "asked for" in shared.says
    shared = choose(memory, GEOMETRY, IPC)
    assert shared.handle is not None
    assert not shared.may_stage
    with pytest.raises(UncachedError, match="virtual memory"):
        choose(device_pool(gpu, MemoryKind.VIRTUAL), GEOMETRY, IPC)


def test_saves_by_layer_take_the_ring(gpu: Gpu) -> None:
    memory = device_pool(gpu)
    assert choose(memory, GEOMETRY, AUTO, by_layer=True).ring is not None
    assert choose(memory, GEOMETRY, IPC, by_layer=True).handle is not None


def test_without_a_ring_either_there_is_a_reason_for_both(gpu: Gpu) -> None:
    memory = device_pool(gpu, MemoryKind.VIRTUAL)
    gpu.faulty(Fault("pin", "cudaErrorMemoryAllocation"))
    with pytest.raises(UncachedError, match=r"cudaErrorMemoryAllocation.*virtual memory"):
        choose(memory, GEOMETRY, AUTO)


def test_a_lost_device_is_a_reason_and_no_exception_of_its_own(gpu: Gpu) -> None:
    memory = device_pool(gpu)
    gpu.faulty(Fault("bind", "cudaErrorIllegalAddress", is_sticky=True))
    with pytest.raises(UncachedError, match="cudaErrorIllegalAddress"):
        choose(memory, GEOMETRY, AUTO)


def test_host_memory_is_shared_as_ever() -> None:
    pool = SharedPool.create(PAGES * PAGE)
    memory = read_tensor(tensor_over(pool.view))[1]
    shared = choose(memory, GEOMETRY, AUTO)
    assert (shared.fd, shared.num_bytes, shared.handle) == (pool.fd, PAGES * PAGE, None)
    assert choose(memory, GEOMETRY, RING).ring is not None
    assert choose(memory, GEOMETRY, AUTO, by_layer=True).ring is not None
    private = read_tensor(tensor_over(np.zeros(PAGES * PAGE, np.uint8)))[1]
    shared = choose(private, GEOMETRY, AUTO)
    assert shared.ring is not None
    assert "shared_pool" in shared.says
    assert "page-locked" not in shared.says


def test_a_layout_on_two_devices_is_refused(gpu: Gpu) -> None:
    other: Any = gpu.other()
    own = gpu.malloc(PAGES * PAGE, MemoryKind.VIRTUAL)
    theirs = other.malloc(PAGES * PAGE, MemoryKind.VIRTUAL)
    regions = [Region(base, PAGE // 2, PAGE // 2, PAGES, both(0)) for base in (own, theirs)]
    with pytest.raises(UncachedError, match="several devices"):
        read_layout(Layout(4, [Group(0, [0], None, regions)]))
