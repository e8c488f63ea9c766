"""Batches of copies on a simulated device: what is refused at the call, and how the rest runs.

A batch runs when its stream comes to it: in random order, big copies in pieces, and each piece
reads its source then. Whoever changed the source too early, or read the target too soon, gets it
wrong.

Must not know: streams, files.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import Batch, DeviceError, Direction
from protocol.device.simulated.memory import Memory, Range

PIECE_BYTES = 64 << 10
_MAX_PIECES = 16


def accept(
    batch: Batch, direction: Direction, memory: Memory, sees: Callable[[Range], bool]
) -> Batch:
    """Checks a batch as it is queued.

    Args:
        batch: by the caller, who may change its arrays afterwards.
        direction: of all of it.
        memory: of the process.
        sees: whether the device reaches some device memory.

    Returns:
        the batch, with arrays of its own.

    Raises:
        DeviceError: what a device would refuse, or what must not be relied on: host memory that is
            not page-locked, or page-locked for reading only; memory of no device; ranges that
            overlap.
    """
    targets, sources, sizes = (
        np.array(column, dtype=np.int64, ndmin=1)
        for column in (batch.targets, batch.sources, batch.sizes)
    )
    if not targets.shape == sources.shape == sizes.shape or targets.ndim != 1:
        raise _refused("columns of unequal length")
    if sizes.size and int(sizes.min()) <= 0:
        raise _refused("a size that is not positive")
    _check_overlaps(targets, sources, sizes)
    near, far = (targets, sources) if direction is Direction.TO_DEVICE else (sources, targets)
    places, is_known = memory.find_all(near, sizes)
    if not is_known.all() or not all(not place.is_host and sees(place) for place in places):
        raise _refused("an end that must be memory of the device is not")
    places, is_known = memory.find_all(far, sizes)
    if not is_known.all():
        raise _refused("host memory that is not page-locked")
    if not all(place.is_host or sees(place) for place in places):
        raise _refused("memory of a device that is out of reach")
    if direction is Direction.TO_HOST and not all(place.is_writable for place in places):
        raise _refused("a target that is page-locked for reading only")
    return Batch(targets, sources, sizes)


def run(batch: Batch, memory: Memory, rng: random.Random, before_piece: Callable[[], None]) -> None:
    """Copies, on the stream's thread.

    Raises:
        DeviceError: memory that was there when the batch was queued is gone, or ``before_piece``
            raised it.
    """
    pieces = [
        piece
        for copy in zip(
            batch.targets.tolist(), batch.sources.tolist(), batch.sizes.tolist(), strict=True
        )
        for piece in _pieces(*copy)
    ]
    rng.shuffle(pieces)
    for target, source, size in pieces:
        before_piece()
        with memory.use(target, source, size):
            ctypes.memmove(target, source, size)


def _pieces(target: int, source: int, size: int) -> list[tuple[int, int, int]]:
    step = max(PIECE_BYTES, -(-size // _MAX_PIECES))
    return [(target + at, source + at, min(step, size - at)) for at in range(0, size, step)]


def _check_overlaps(
    targets: NDArray[np.int64], sources: NDArray[np.int64], sizes: NDArray[np.int64]
) -> None:
    """No target byte may be another copy's target, or anybody's source."""
    order = np.argsort(targets)
    begins, ends = targets[order], (targets + sizes)[order]
    if np.any(begins[1:] < ends[:-1]):
        raise _refused("targets overlap")
    # Targets are apart now, so those that a source touches lie between these two.
    first = np.searchsorted(ends, sources, side="right")
    last = np.searchsorted(begins, sources + sizes, side="left")
    if np.any(first < last):
        raise _refused("a source overlaps a target")


def _refused(why: str) -> DeviceError:
    return DeviceError("cudaErrorInvalidValue", f"simulated copy: {why}")
