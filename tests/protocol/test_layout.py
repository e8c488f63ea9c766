"""Pools, pages and slots: nothing outside the memory, nothing outside the pool (B48, P06)."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import codec, frames, limits, messages
from protocol.errors import ErrorCode, RequestError
from protocol.layout import (
    SLOT_DTYPE,
    CudaIpcMemory,
    MemfdMemory,
    Memory,
    Region,
    RingMemory,
    ShardPool,
    check_pool,
    pack_pages,
    unpack_pages,
    unpack_slots,
)
from tests.protocol.test_namespace import BASE


def pool(*regions: tuple[int, int, int], num_pages: int = 8) -> ShardPool:
    parts = tuple(
        Region(offset_bytes=at, size_bytes=size, stride_bytes=stride)
        for at, size, stride in regions
    )
    return ShardPool(shard=0, num_pages=num_pages, regions=parts)


@pytest.mark.parametrize(
    "memory",
    [
        CudaIpcMemory(
            handle=bytes(range(64)), device_uuid=b"u" * 16, base_offset_bytes=512, size_bytes=4096
        ),
        CudaIpcMemory(handle=bytes(64), device_uuid=bytes(16), base_offset_bytes=0, size_bytes=1),
        MemfdMemory(pool=b"p" * 16, size_bytes=limits.MAX_POOL_BYTES),
        RingMemory(pool=b"r" * 16, size_bytes=1),
        None,
    ],
)
def test_descriptors_travel_whole(memory: Memory | None) -> None:
    """B48: the offset within the allocation goes along and comes back."""
    body = messages.RegisterKvCache(
        namespace=BASE, rank=0, memory=memory, pools=(pool((512, 4096, 8192)),)
    )
    frame = frames.pack_request(body, 1, b"e" * 16, b"a" * 16, 0)
    assert frames.request_body(frames.unpack_request(frame)) == body


@pytest.mark.parametrize(
    "plain",
    [
        {"type": "memfd", "pool": bytes(16), "size_bytes": 0},
        {"type": "memfd", "pool": bytes(15), "size_bytes": 1},
        {"type": "memfd", "pool": bytes(16), "size_bytes": 1, "base_offset_bytes": 0},
        {"type": "shm", "pool": bytes(16), "size_bytes": 1},
        {"pool": bytes(16), "size_bytes": 1},
        {
            "type": "cuda_ipc",
            "handle": bytes(64),
            "device_uuid": bytes(16),
            "base_offset_bytes": -1,
            "size_bytes": 1,
        },
    ],
)
def test_descriptors_that_are_none(plain: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        codec.struct_from_plain(plain, Memory)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.MALFORMED


def test_pages_that_just_fit() -> None:
    check_pool(pool((0, 4096, 4096)), 8 * 4096, 4096)
    check_pool(pool((100, 10, 1000)), 100 + 7 * 1000 + 10, 10)
    check_pool(pool((0, 6, 16), (6, 10, 16)), 8 * 16, 16)
    check_pool(pool((4096, 4096, 1 << 40), num_pages=1), 8192, 4096)


@pytest.mark.parametrize(
    ("given_pool", "memory_bytes", "code"),
    [
        (pool((0, 4096, 4096)), 8 * 4096 - 1, ErrorCode.POOL_INVALID),
        (pool((1, 4096, 4096)), 8 * 4096, ErrorCode.POOL_INVALID),
        (pool((0, 4096, 4095)), 1 << 30, ErrorCode.POOL_INVALID),
        (pool((0, 2048, 4096), (1 << 20, 2048, 4096)), 1 << 20, ErrorCode.POOL_INVALID),
        (pool((0, 4095, 4096)), 1 << 30, ErrorCode.PAGE_SIZE_MISMATCH),
        (pool((0, 4096, 4096), (0, 1, 1)), 1 << 30, ErrorCode.PAGE_SIZE_MISMATCH),
        (
            pool((1 << 44, 4096, 1 << 44), num_pages=limits.MAX_PAGES),
            1 << 44,
            ErrorCode.POOL_INVALID,
        ),
    ],
)
def test_pools_that_reach_outside(
    given_pool: ShardPool, memory_bytes: int, code: ErrorCode
) -> None:
    with pytest.raises(RequestError) as caught:
        check_pool(given_pool, memory_bytes, 4096)
    assert caught.value.code is code


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(1, 30)),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 5),
    st.integers(1, 250),
)
def test_accepted_means_every_byte_lies_inside_and_no_part_overlaps_the_next(
    parts: list[tuple[int, int, int]], num_pages: int, memory_bytes: int
) -> None:
    described = pool(*parts, num_pages=num_pages)
    sound = all(
        stride >= size and at + stride * page + size <= memory_bytes
        for at, size, stride in parts
        for page in range(num_pages)
    )
    refusal = None
    try:
        check_pool(described, memory_bytes, described.page_bytes)
    except RequestError as error:
        refusal = error.code
    assert refusal is (None if sound else ErrorCode.POOL_INVALID)


@given(st.lists(st.integers(0, 99), max_size=20))
def test_pages_round_trip(pages: list[int]) -> None:
    blob = pack_pages(pages)
    assert blob == b"".join(page.to_bytes(4, "little") for page in pages)
    assert unpack_pages(blob, 100).tolist() == pages
    assert pack_pages(np.array(pages, dtype=np.int32)) == blob
    assert pack_pages(np.array(pages, dtype=np.int64)) == blob


@pytest.mark.parametrize("bad", [-1, 8, 2**31 - 1, -(2**31)])
def test_pages_outside_the_pool_are_named(bad: int) -> None:
    """B48: -1 and one past the last are refused, whatever stands beside them."""
    assert unpack_pages(pack_pages([0, 7]), 8).tolist() == [0, 7]
    with pytest.raises(RequestError) as caught:
        unpack_pages(pack_pages([0, bad, 7]), 8)
    assert caught.value.code is ErrorCode.PAGE_OUT_OF_RANGE
    assert caught.value.detail == {"page": bad, "num_pages": 8}


@pytest.mark.parametrize("length", [1, 3, 5, 4 * 7 - 1])
def test_ragged_pages(length: int) -> None:
    with pytest.raises(RequestError) as caught:
        unpack_pages(bytes(length), 8)
    assert caught.value.code is ErrorCode.COUNT_MISMATCH


@pytest.mark.parametrize("pages", [[2**31], [2**32 + 1], [1.5]])
def test_a_page_is_never_silently_another(pages: list[Any]) -> None:
    with pytest.raises(RequestError) as caught:
        pack_pages(np.array(pages))
    assert caught.value.code is ErrorCode.PAGE_OUT_OF_RANGE


def test_slots_are_chunk_major() -> None:
    table = np.zeros((2, 3), dtype=SLOT_DTYPE)
    table["extent"] = [[1, 2, 3], [4, 5, 6]]
    table["slot"] = 7
    table["generation"] = 2**63
    blob = table.tobytes()
    assert blob[:16] == b"\x01\0\0\0\x07\0\0\0\0\0\0\0\0\0\0\x80"
    read = unpack_slots(blob, 2, 3)
    assert read["extent"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert int(read[1, 2]["generation"]) == 2**63


@pytest.mark.parametrize(("length", "chunks", "shards"), [(95, 2, 3), (96, 3, 3), (0, 1, 1)])
def test_slots_that_do_not_add_up(length: int, chunks: int, shards: int) -> None:
    with pytest.raises(RequestError) as caught:
        unpack_slots(bytes(length), chunks, shards)
    assert caught.value.code is ErrorCode.COUNT_MISMATCH


def test_a_pool_without_regions_is_none() -> None:
    plain = msgspec.to_builtins(pool((0, 1, 1)))
    plain["regions"] = []
    with pytest.raises(RequestError, match="regions"):
        codec.struct_from_plain(plain, ShardPool)
