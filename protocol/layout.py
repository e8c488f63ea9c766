"""Where a rank's pages lie: memory descriptors, regions, and slots on the reply's side.

Purpose: describe an engine's pool completely enough to check every page id before a byte moves
(B48, P06), and describe the slots of leased chunks. Must not know: mappings, addresses, CUDA
calls. Runs in: every process.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import ErrorCode, RequestError
from protocol.ids import ID_BYTES, ExtentId, Generation

Bytes16 = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
PoolBytes = Annotated[int, Meta(ge=1, le=limits.MAX_POOL_BYTES)]
PoolOffset = Annotated[int, Meta(ge=0, le=limits.MAX_POOL_BYTES)]


class MemfdMemory(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="memfd"
):
    """Host memory in a sealed memfd that went over the side socket before.

    Attributes:
        pool: the id under which its descriptor was passed.
        size_bytes: length of the file.
    """

    pool: Bytes16
    size_bytes: PoolBytes


class CudaIpcMemory(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="cuda_ipc"
):
    """Device memory exported with cudaIpcGetMemHandle.

    Attributes:
        handle: 64 bytes, naming the whole allocation.
        device_uuid: 16 bytes of the device that owns it.
        base_offset_bytes: where the pool begins within the allocation (B48).
        size_bytes: length of the pool.
    """

    handle: Annotated[bytes, Meta(min_length=64, max_length=64)]
    device_uuid: Bytes16
    base_offset_bytes: PoolOffset
    size_bytes: PoolBytes


class RingMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ring"):
    """The engine's own staging ring, for pools that cannot be exported.

    Attributes:
        pool: the id under which the ring's descriptor was passed.
        size_bytes: length of the ring.
    """

    pool: Bytes16
    size_bytes: PoolBytes


Memory = MemfdMemory | CudaIpcMemory | RingMemory

FileMemory = MemfdMemory | RingMemory
"""Memory whose descriptor goes over the side socket: a server maps both kinds alike."""


class Region(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One strided run of page parts: part i is ``size_bytes`` at ``offset + stride * i``.

    Attributes:
        offset_bytes: start of part 0 within the memory.
        size_bytes: bytes of one part.
        stride_bytes: distance of parts, at least ``size_bytes``.
    """

    offset_bytes: PoolOffset
    size_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_PAGE_BYTES)]
    stride_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_POOL_BYTES)]


class ShardPool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The pages of one shard on one rank. A page is its parts in all regions, concatenated.

    Attributes:
        shard: shard number within the namespace.
        num_pages: page ids are 0 <= id < num_pages.
        regions: in order; one for a V1 pool.
    """

    shard: Annotated[int, Meta(ge=0, lt=limits.MAX_SHARDS)]
    num_pages: Annotated[int, Meta(ge=1, le=limits.MAX_PAGES)]
    regions: Annotated[tuple[Region, ...], Meta(min_length=1, max_length=limits.MAX_REGIONS)]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all regions."""
        return sum(region.size_bytes for region in self.regions)


def check_pool(pool: ShardPool, memory_bytes: int, page_bytes: int) -> None:
    """Checks that every page lies inside the memory and has the namespace's size.

    Args:
        pool: as the peer described it.
        memory_bytes: real length of the memory.
        page_bytes: bytes of a page according to the namespace.

    Raises:
        RequestError: PAGE_SIZE_MISMATCH or POOL_INVALID, naming the numbers.
    """
    if pool.page_bytes != page_bytes:
        raise RequestError(
            ErrorCode.PAGE_SIZE_MISMATCH,
            f"the pool's pages have {pool.page_bytes} bytes, the namespace says {page_bytes}",
            pool_page_bytes=pool.page_bytes,
            namespace_page_bytes=page_bytes,
        )
    for region in pool.regions:
        if region.stride_bytes < region.size_bytes:
            raise RequestError(
                ErrorCode.POOL_INVALID,
                f"a stride of {region.stride_bytes} bytes overlaps parts of "
                f"{region.size_bytes} bytes",
            )
        end = region.offset_bytes + region.stride_bytes * (pool.num_pages - 1) + region.size_bytes
        if end > memory_bytes:
            raise RequestError(
                ErrorCode.POOL_INVALID,
                f"{pool.num_pages} pages end at byte {end}, the memory has {memory_bytes} bytes",
                pages_end_bytes=end,
                memory_bytes=memory_bytes,
            )


PAGE_DTYPE = np.dtype("<i4")


def pack_pages(pages: NDArray[np.int32] | list[int]) -> bytes:
    """Page ids as int32 LE.

    Args:
        pages: int[n].

    Returns:
        bytes[4 * n].

    Raises:
        RequestError: PAGE_OUT_OF_RANGE for an id that is no int32: never another page instead.
    """
    given = np.asarray(pages)
    if given.dtype == PAGE_DTYPE:
        return given.tobytes()
    packed = given.astype(PAGE_DTYPE)
    if not np.array_equal(packed, given):
        raise RequestError(ErrorCode.PAGE_OUT_OF_RANGE, "page ids must be integers in int32")
    return packed.tobytes()


def unpack_pages(blob: bytes, num_pages: int) -> NDArray[np.int32]:
    """Page ids of a message, each checked against the pool.

    Args:
        blob: bytes[4 * n].
        num_pages: pages in the pool.

    Returns:
        int32[n].

    Raises:
        RequestError: COUNT_MISMATCH for a ragged blob, PAGE_OUT_OF_RANGE for an id outside.
    """
    if len(blob) % PAGE_DTYPE.itemsize:
        raise RequestError(
            ErrorCode.COUNT_MISMATCH, f"{len(blob)} bytes are no whole number of int32 page ids"
        )
    pages = np.frombuffer(blob, dtype=PAGE_DTYPE)
    if pages.size and (int(pages.min()) < 0 or int(pages.max()) >= num_pages):
        bad = int(pages[(pages < 0) | (pages >= num_pages)][0])
        raise RequestError(
            ErrorCode.PAGE_OUT_OF_RANGE,
            f"page {bad} is not within 0..{num_pages - 1}",
            page=bad,
            num_pages=num_pages,
        )
    return pages


#: One slot of a RETRIEVE reply: the extent's id, the slot's index in it, its generation.
SLOT_DTYPE = np.dtype([("extent", "<u4"), ("slot", "<u4"), ("generation", "<u8")])


class SlotRef(msgspec.Struct, frozen=True, array_like=True):
    """One slot descriptor as plain values.

    Attributes:
        extent: extent id.
        slot: index within the extent.
        generation: stamp it must still carry when a copy of it ends.
    """

    extent: ExtentId
    slot: int
    generation: Generation


def unpack_slots(blob: bytes, num_chunks: int, num_shards: int) -> NDArray[np.void]:
    """Slot descriptors of a RETRIEVE reply.

    Args:
        blob: bytes[16 * num_chunks * num_shards], chunk-major.
        num_chunks: chunks retrieved.
        num_shards: shards per chunk.

    Returns:
        SLOT_DTYPE[num_chunks, num_shards].

    Raises:
        RequestError: COUNT_MISMATCH when the lengths do not agree.
    """
    if len(blob) != num_chunks * num_shards * SLOT_DTYPE.itemsize:
        raise RequestError(
            ErrorCode.COUNT_MISMATCH,
            f"{len(blob)} bytes are not {num_chunks} chunks x {num_shards} slot descriptors",
        )
    return np.frombuffer(blob, dtype=SLOT_DTYPE).reshape(num_chunks, num_shards)
