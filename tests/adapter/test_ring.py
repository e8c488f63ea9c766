"""Slots are lent once, come back once, and lie where the server is told."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter import ring as ring_module
from adapter.geometry import Geometry
from adapter.pages import F_GET_SEALS, POOL_SEALS, find_pool
from adapter.ring import MIN_CHUNKS, RING_BYTES, Lot, StagingRing
from protocol.device.interface import DeviceError, MemoryKind
from protocol.device.simulated.faults import Fault
from protocol.layout import check_pool
from tests.adapter.gpu import simulated
from tests.adapter.hostlike import geometry


def uneven() -> Geometry:
    return geometry(chunk_blocks=2, num_pages=64, windows=(0, 8), page_bytes=4096)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1), st.integers(1, 9))))
def test_no_slot_is_lent_twice_or_lost(acts: list[tuple[bool, int, int]]) -> None:
    ring = StagingRing(uneven(), num_bytes=10 * 4096)
    lots: list[Lot] = []
    for takes, group, count in acts:
        if takes:
            free = ring.num_free(group)
            lot = ring.take(group, count)
            assert (lot is None) == (count > free)
            if lot is not None:
                assert (lot.group, lot.slots.size) == (group, count)
                lots.append(lot)
        elif lots:
            lot = lots.pop(count % len(lots))
            ring.give_back(lot)
            ring.give_back(lot)  # again, as after a late answer
        for of in range(2):
            lent = [slot for one in lots if one.group == of for slot in one.slots.tolist()]
            assert len(lent) == len(set(lent)) == ring.num_slots(of) - ring.num_free(of)
            assert all(0 <= slot < ring.num_slots(of) for slot in lent)
        assert ring.num_lent == len(lots)
    ring.give_back_all([None, *lots])
    assert [ring.num_free(of) for of in range(2)] == [ring.num_slots(of) for of in range(2)]


@pytest.mark.parametrize(
    ("num_pages", "page_bytes", "expected"),
    [
        (16, 4096, 16),  # at most the pool
        (1 << 20, 4096, RING_BYTES // 4096),
        (64, RING_BYTES, MIN_CHUNKS),  # at least two chunks
    ],
)
def test_size(num_pages: int, page_bytes: int, expected: int) -> None:
    ring = StagingRing(geometry(num_pages=num_pages, page_bytes=page_bytes))
    assert ring.num_slots(0) == expected
    assert ring.num_bytes == expected * page_bytes


def test_the_server_finds_each_slot_and_may_only_read() -> None:
    geo = uneven()
    ring = StagingRing(geo, num_bytes=10 * 4096)
    assert fcntl.fcntl(ring.fd, F_GET_SEALS) == POOL_SEALS
    pools = ring.shard_pools(geo.shards)
    assert [pool.shard for pool in pools] == list(geo.shards)
    with mmap.mmap(ring.fd, ring.num_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as seen:
        for group, pool in enumerate(pools):
            check_pool(pool, ring.num_bytes, geo.groups[group].page_bytes)
            for slot in range(pool.num_pages):
                ring.page(group, slot)[:] = 1 + group * 100 + slot
        for group, pool in enumerate(pools):
            (region,) = pool.regions
            for slot in range(pool.num_pages):
                at = region.offset_bytes + region.stride_bytes * slot
                part = np.frombuffer(seen[at : at + region.size_bytes], dtype=np.uint8)
                assert (part == 1 + group * 100 + slot).all()


def test_whole_chunks_that_fit() -> None:
    ring = StagingRing(uneven(), num_bytes=0)
    assert ring.num_slots(0) == 2 * MIN_CHUNKS
    assert ring.take(0, 1) is not None
    assert ring.num_free_chunks(0) == 1
    assert ring.num_free_chunks(1) == 2


def test_for_a_device_it_is_locked_until_it_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with simulated(monkeypatch, tmp_path) as gpu:
        ring = StagingRing(uneven(), num_bytes=10 * 4096, device=gpu.seam)
        address, last = ring.address, ring.address + ring.num_bytes - 1
        for byte in (address, last):
            place = gpu.device.place(byte)
            assert place is not None
            assert place.kind is MemoryKind.HOST
        pool = find_pool(address, 1)
        assert pool is not None  # keeps the mapping, so that the address stays ours
        del ring
        gc.collect()
        assert gpu.device.place(address) is None
        pool.close()


def test_what_a_hanging_device_may_still_write_stays_locked_for_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = len(ring_module._KEPT)
    with simulated(monkeypatch, tmp_path) as gpu:
        ring = StagingRing(uneven(), num_bytes=10 * 4096, device=gpu.seam)
        address = ring.address
        ring.keep_for_good()
        ring.keep_for_good()
        assert len(ring_module._KEPT) == kept + 1
        del ring
        gc.collect()
        assert gpu.device.place(address) is not None
        assert find_pool(address, 4 * 4096) is not None
    del ring_module._KEPT[kept:]


def test_a_ring_that_cannot_be_locked_leaves_no_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with simulated(monkeypatch, tmp_path) as gpu:
        gpu.faulty(Fault("pin", "cudaErrorMemoryAllocation"))
        fds = len(os.listdir("/proc/self/fd"))
        with pytest.raises(DeviceError, match="cudaErrorMemoryAllocation"):
            StagingRing(uneven(), num_bytes=10 * 4096, device=gpu.seam)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == fds


def test_slots_have_addresses_where_their_pages_are() -> None:
    ring = StagingRing(uneven(), num_bytes=20 * 4096)
    for group in (0, 1):
        lot = ring.take(group, 3)
        assert lot is not None
        found = [ring.page(group, slot).ctypes.data for slot in lot.slots.tolist()]
        assert ring.addresses(lot).tolist() == found
