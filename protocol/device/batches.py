"""Batches of copies made fewer, or cut to a size, without a loop over the copies.

Must not know: devices, what the bytes are. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import Batch


def coalesce(batch: Batch, begins: NDArray[np.int64] | None = None) -> Batch:
    """Joins copies that follow each other in the batch and touch on both ends. Keeps the order.

    Args:
        batch: of any length.
        begins: int64[n], addresses in order that no joined copy crosses; none unless given.
    """
    if len(batch.sizes) < 2:
        return batch
    follows = (batch.targets[:-1] + batch.sizes[:-1] == batch.targets[1:]) & (
        batch.sources[:-1] + batch.sizes[:-1] == batch.sources[1:]
    )
    if begins is not None and begins.size:
        for addresses in (batch.targets[1:], batch.sources[1:]):
            found = np.minimum(np.searchsorted(begins, addresses), begins.size - 1)
            follows &= begins[found] != addresses
    if not follows.any():
        return batch
    firsts = np.flatnonzero(np.concatenate(([True], ~follows)))
    return Batch(batch.targets[firsts], batch.sources[firsts], np.add.reduceat(batch.sizes, firsts))


def split(batch: Batch, max_bytes: int) -> Iterator[Batch]:
    """Cuts a batch into batches of at most so many bytes; a copy is cut where it does not fit.

    All but the last have exactly ``max_bytes``. Keeps the order.

    Args:
        batch: of any length; nothing comes of an empty one.
        max_bytes: positive.
    """
    if max_bytes <= 0:
        raise ValueError(f"batches of at most {max_bytes} bytes")
    ends = np.cumsum(batch.sizes)
    if not len(ends):
        return
    begins = ends - batch.sizes
    total = int(ends[-1])
    # Offsets within the bytes of all copies laid behind each other at which a piece begins.
    cuts = np.union1d(begins, np.arange(0, total, max_bytes, dtype=np.int64))
    owner = np.searchsorted(begins, cuts, side="right") - 1
    inside = cuts - begins[owner]
    pieces = Batch(
        batch.targets[owner] + inside,
        batch.sources[owner] + inside,
        np.diff(np.append(cuts, total)),
    )
    limits = np.searchsorted(cuts, np.arange(0, total + max_bytes, max_bytes, dtype=np.int64))
    for first, last in zip(limits[:-1].tolist(), limits[1:].tolist(), strict=True):
        yield Batch(
            pieces.targets[first:last], pieces.sources[first:last], pieces.sizes[first:last]
        )
