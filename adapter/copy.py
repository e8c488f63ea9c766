"""Loads: from mapped extents into the engine's pool, page by page, checked afterwards.

The reader copies from its own mapping, so a load needs no server (design rule 2). When the copy
has ended, every slot must still carry the generation that RETRIEVE named: leases and quarantine
guarantee that, and this check is the tripwire.

Must not know: sockets, requests, streams (the caller ordered the copy after the engine's work).
Runs in: the thread that calls it; numpy copies without holding the GIL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    _check_pool(pool)
    rows: list[tuple[int, int, int]] = slots.tolist()
    numbers = {number for number, _, _ in rows}
    with table.hold(epoch, numbers) as extents:
        starts = _slot_starts(extents, numbers, rows, offsets.shape[1] * page_bytes)
        runs, num_pages = _runs(rows, starts, offsets.tolist(), page_bytes)
        _check_targets(runs, pool, page_bytes)
        for owner, source, target, length in runs:
            view = extents[owner].view
            np.copyto(pool[target : target + length], view[source : source + length])
        _check_generations(extents, rows)
    return num_pages * page_bytes


# Plain integers on purpose: a copy streams through the caches, and each numpy call beside it runs
# cold. For 32 pages of 4 MiB they cost a twentieth of the load.


def _slot_starts(
    extents: Mapping[int, MappedExtent],
    numbers: Iterable[int],
    rows: Sequence[tuple[int, int, int]],
    chunk_bytes: int,
) -> list[int]:
    """Where each row's slot begins in its extent."""
    cuts = {}
    for number in numbers:
        extent = extents.get(number)
        if extent is None:
            raise LoadError(
                ErrorCode.UNAVAILABLE, f"extent {number} is not mapped here", extent=number
            )
        cut = cuts[number] = extent.geometry
        if cut.payload_bytes != chunk_bytes:
            raise LoadError(
                ErrorCode.PAGE_SIZE_MISMATCH,
                f"a chunk of {chunk_bytes} bytes is not the {cut.payload_bytes} bytes of a slot "
                f"of extent {number}",
            )
    facts = {n: (c.num_slots, c.data_offset_bytes, c.slot_bytes) for n, c in cuts.items()}
    starts = []
    for number, slot, _ in rows:
        num_slots, first_byte, slot_bytes = facts[number]
        if slot >= num_slots:
            raise LoadError(
                ErrorCode.INVALID_ARGUMENT,
                f"slot {slot} is not within 0..{num_slots - 1} of extent {number}",
            )
        starts.append(first_byte + slot * slot_bytes)
    return starts


def _runs(
    rows: Sequence[tuple[int, int, int]],
    starts: Sequence[int],
    wanted: Sequence[Sequence[int]],
    page_bytes: int,
) -> tuple[list[tuple[int, int, int, int]], int]:
    """(extent, source, target, length) of neighbouring pages in one go, and how many pages."""
    runs: list[tuple[int, int, int, int]] = []
    owner_now = source_end = target_end = -1
    num_pages = 0
    for (owner, _, _), start, targets in zip(rows, starts, wanted, strict=True):
        source = start
        for target in targets:
            end = source + page_bytes
            if target != -1:
                num_pages += 1
                if owner == owner_now and source == source_end and target == target_end:
                    _, first, to, length = runs[-1]
                    runs[-1] = (owner, first, to, length + page_bytes)
                else:
                    runs.append((owner, source, target, page_bytes))
                owner_now, source_end, target_end = owner, end, target + page_bytes
            source = end
    return runs, num_pages


def _check_pool(pool: NDArray[np.uint8]) -> None:
    if pool.dtype != np.uint8 or pool.ndim != 1 or not pool.flags.c_contiguous:
        raise LoadError(ErrorCode.POOL_INVALID, "the pool must be a contiguous array of uint8")
    if not pool.flags.writeable:
        raise LoadError(ErrorCode.POOL_INVALID, "the pool is not writable")


def _check_targets(
    runs: Sequence[tuple[int, int, int, int]], pool: NDArray[np.uint8], page_bytes: int
) -> None:
    pool_bytes = pool.size
    for _, _, target, length in runs:
        if target < 0 or target + length > pool_bytes:
            raise LoadError(
                ErrorCode.PAGE_OUT_OF_RANGE,
                f"pages at {target}..{target + length - page_bytes} of {page_bytes} bytes are not "
                f"within the pool's {pool_bytes} bytes",
            )


def _check_generations(
    extents: Mapping[int, MappedExtent], rows: Sequence[tuple[int, int, int]]
) -> None:
    generations = {number: extent.generations for number, extent in extents.items()}
    for number, slot, wanted in rows:
        now = int(generations[number][slot])
        if now != wanted or now == 0:
            raise LoadError(
                ErrorCode.COPY_FAILED,
                f"slot {slot} of extent {number} carries generation {now}, not {wanted}: it was "
                "reused while a lease stood on it",
                extent=number,
                slot=slot,
            )
