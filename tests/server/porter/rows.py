"""Parts of jobs, extents in memory and keys for tests of the porter."""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray

from server.core.tiers.parts import PART_DTYPE

SPACE = bytes(range(16))
OTHER = bytes(range(1, 17))
PAGE = 4096


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def rows(
    numbers: list[int], extent: int = 1, room: int = PAGE, length: int | None = None
) -> NDArray[np.void]:
    """Chunks by number, each in the slot of that number behind the first page."""
    made = np.zeros(len(numbers), dtype=PART_DTYPE)
    for row, number in zip(made, numbers, strict=True):
        row["key"] = np.void(key(number))
        row["parent"] = np.void(key(number - 1) if number > 1 else bytes(16))
        row["extent"] = extent
        row["offset"] = PAGE + (number - 1) * room
        row["length"] = room - 100 if length is None else length
        row["room"] = room
    return made


def memory(size: int) -> tuple[int, mmap.mmap]:
    """A file in memory and its bytes."""
    fd = os.memfd_create("kvkeep-test")
    os.ftruncate(fd, size)
    return fd, mmap.mmap(fd, size)
