"""Loads: from mapped extents into the engine's pool, page by page, checked afterwards.

The reader copies from its own mapping, so a load needs no server (design rule 2). When the copy
has ended, every slot must still carry the generation that RETRIEVE named: leases and quarantine
guarantee that, and this check is the tripwire.

Must not know: sockets, requests, streams (the caller ordered the copy after the engine's work).
Runs in: the thread that calls it; numpy copies without holding the GIL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.extents import ExtentTable, MappedExtent
from protocol.errors import ErrorCode, KvkeepError
from protocol.ids import Epoch


class LoadError(KvkeepError):
    """Pages were not filled with what was promised; nothing may be computed on them."""


def load_pages(
    table: ExtentTable,
    epoch: Epoch,
    slots: NDArray[Any],
    pool: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    page_bytes: int,
) -> int:
    """Copies chunks of one shard into the pool.

    Args:
        table: this process's mapped extents.
        epoch: ``Joined.epoch`` at the time of the RETRIEVE.
        slots: SLOT_DTYPE[n], one per chunk: this rank's column of the RETRIEVE reply.
        pool: uint8[pool_bytes], contiguous and writable.
        offsets: int64[n, chunk_blocks], where in ``pool`` each page of each chunk goes, in bytes;
            -1 for a page that is not wanted.
        page_bytes: bytes of one page.

    Returns:
        Bytes copied.

    Raises:
        LoadError: an extent is not mapped, a descriptor or an offset is out of range (nothing was
            written then), or a slot was changed while it was copied.
    """
    if offsets.ndim != 2 or slots.ndim != 1 or len(offsets) != len(slots):
        raise LoadError(
            ErrorCode.COUNT_MISMATCH,
            f"slots of shape {slots.shape} do not go with offsets of shape {offsets.shape}",
        )
    numbers = slots["extent"].astype(np.int64)
    with table.hold(epoch, np.unique(numbers).tolist()) as extents:
        sources = _sources(extents, numbers, slots, offsets.shape[1], page_bytes)
        chosen = offsets.reshape(-1) != -1
        targets = offsets.reshape(-1)[chosen].astype(np.int64)
        _check_targets(targets, pool, page_bytes)
        owners = np.repeat(numbers, offsets.shape[1])[chosen]
        _copy_runs(extents, owners, sources.reshape(-1)[chosen], pool, targets, page_bytes)
        _check_generations(extents, numbers, slots)
    return len(targets) * page_bytes


def _sources(
    extents: Mapping[int, MappedExtent],
    numbers: NDArray[np.int64],
    slots: NDArray[Any],
    chunk_blocks: int,
    page_bytes: int,
) -> NDArray[np.int64]:
    """Offsets of the pages within their extents: int64[n, chunk_blocks]."""
    starts = np.zeros(len(slots), dtype=np.int64)
    for number in np.unique(numbers).tolist():
        extent = extents.get(number)
        if extent is None:
            raise LoadError(
                ErrorCode.UNAVAILABLE, f"extent {number} is not mapped here", extent=number
            )
        geometry = extent.geometry
        if geometry.payload_bytes != chunk_blocks * page_bytes:
            raise LoadError(
                ErrorCode.PAGE_SIZE_MISMATCH,
                f"{chunk_blocks} pages of {page_bytes} bytes are not the "
                f"{geometry.payload_bytes} bytes of a slot of extent {number}",
            )
        of_extent = numbers == number
        indices = slots["slot"][of_extent].astype(np.int64)
        if int(indices.max()) >= geometry.num_slots:
            raise LoadError(
                ErrorCode.INVALID_ARGUMENT,
                f"slot {int(indices.max())} is not within 0..{geometry.num_slots - 1} of extent "
                f"{number}",
            )
        starts[of_extent] = geometry.data_offset_bytes + indices * geometry.slot_bytes
    return starts[:, None] + np.arange(chunk_blocks, dtype=np.int64) * page_bytes


def _check_targets(targets: NDArray[np.int64], pool: NDArray[np.uint8], page_bytes: int) -> None:
    if pool.dtype != np.uint8 or pool.ndim != 1 or not pool.flags.c_contiguous:
        raise LoadError(ErrorCode.POOL_INVALID, "the pool must be a contiguous array of uint8")
    if not pool.flags.writeable:
        raise LoadError(ErrorCode.POOL_INVALID, "the pool is not writable")
    if targets.size and not (
        int(targets.min()) >= 0 and int(targets.max()) + page_bytes <= pool.size
    ):
        raise LoadError(
            ErrorCode.PAGE_OUT_OF_RANGE,
            f"pages at {int(targets.min())}..{int(targets.max())} of {page_bytes} bytes are not "
            f"within the pool's {pool.size} bytes",
        )


def _copy_runs(
    extents: Mapping[int, MappedExtent],
    owners: NDArray[np.int64],
    sources: NDArray[np.int64],
    pool: NDArray[np.uint8],
    targets: NDArray[np.int64],
    page_bytes: int,
) -> None:
    """Copies pages, those that are neighbours on both sides in one go."""
    if not targets.size:
        return
    is_break = np.ones(len(targets), dtype=np.bool_)
    is_break[1:] = (
        (np.diff(owners) != 0) | (np.diff(sources) != page_bytes) | (np.diff(targets) != page_bytes)
    )
    first = np.flatnonzero(is_break)
    lengths = np.diff(np.append(first, len(targets))) * page_bytes
    runs = zip(
        owners[first].tolist(),
        sources[first].tolist(),
        targets[first].tolist(),
        lengths.tolist(),
        strict=True,
    )
    for owner, source, target, length in runs:
        view = extents[owner].view
        np.copyto(pool[target : target + length], view[source : source + length])


def _check_generations(
    extents: Mapping[int, MappedExtent], numbers: NDArray[np.int64], slots: NDArray[Any]
) -> None:
    for number, extent in extents.items():
        mine = slots[numbers == number]
        now = extent.generations[mine["slot"]]
        changed = np.flatnonzero((now != mine["generation"]) | (now == 0))
        if changed.size:
            row = mine[changed[0]]
            raise LoadError(
                ErrorCode.COPY_FAILED,
                f"slot {int(row['slot'])} of extent {number} carries generation "
                f"{int(now[changed[0]])}, not {int(row['generation'])}: it was reused while a "
                "lease stood on it",
                extent=number,
                slot=int(row["slot"]),
            )
