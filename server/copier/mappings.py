"""What a copier has mapped, how it copies, and how it populates in between.

Purpose: pools read-only, extents writable, both by number; copies of runs that lie side by side
on both ends go in one call. Bounds are checked here once more: a copier that trusted an offset
would write over other slots. Must not know: sockets, who asks. Runs in: the copier process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

POPULATE_STEP_BYTES = 16 << 20
"""Longest stretch populated at once: about 16 ms, the most a job waits for it."""

_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
_BLOCK_BYTES = 512


@dataclass(eq=False)
class Mapping:
    """One mapped file.

    Attributes:
        view: uint8[size], read-only for pools.
        first_byte: lowest offset that a copy may touch.
        advice: how to populate it, or 0 for not at all.
        populated_bytes: leading bytes that are populated.
    """

    view: NDArray[np.uint8]
    first_byte: int
    advice: int
    populated_bytes: int = 0


def _map(fd: int, size_bytes: int, writable: bool) -> NDArray[np.uint8]:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return np.frombuffer(mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, protection), dtype=np.uint8)


class Mappings:
    """Pools and extents of one copier."""

    def __init__(self) -> None:
        self._pools: dict[int, Mapping] = {}
        self._extents: dict[int, Mapping] = {}
        self._cold: deque[Mapping] = deque()
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._madvise.restype = ctypes.c_int

    def map_pool(self, number: int, fd: int, size_bytes: int) -> None:
        """Maps a pool read-only.

        A pool whose file has all its pages gets its page tables filled in the background; a
        sparse one does not, or its memory would be charged to the server.

        Args:
            number: its handle.
            fd: descriptor, closed by the caller.
            size_bytes: length to map; the file is at least as long.

        Raises:
            OSError: the file is shorter or cannot be mapped.
        """
        stat = os.fstat(fd)
        if stat.st_size < size_bytes:
            raise OSError(f"the pool has {stat.st_size} bytes, {size_bytes} were registered")
        whole = stat.st_blocks * _BLOCK_BYTES >= size_bytes
        mapping = Mapping(_map(fd, size_bytes, False), 0, _MADV_POPULATE_READ if whole else 0)
        self._pools[number] = mapping
        self._cold.append(mapping)

    def map_extent(self, number: int, fd: int, size_bytes: int, first_byte: int) -> None:
        """Maps an extent writable; it is populated in the background.

        Args:
            number: its id.
            fd: descriptor, closed by the caller.
            size_bytes: length of the file.
            first_byte: where slot 0 begins; nothing before it is ever written here.

        Raises:
            OSError: the file cannot be mapped.
        """
        mapping = Mapping(_map(fd, size_bytes, True), first_byte, _MADV_POPULATE_WRITE)
        self._extents[number] = mapping
        self._cold.append(mapping)

    def unmap_pool(self, number: int) -> None:
        """Forgets a pool; unknown numbers are fine, since the mapping is gone either way."""
        self._forget(self._pools.pop(number, None))

    def unmap_extent(self, number: int) -> None:
        """Forgets an extent; unknown numbers are fine."""
        self._forget(self._extents.pop(number, None))

    def _forget(self, mapping: Mapping | None) -> None:
        if mapping is not None and mapping in self._cold:
            self._cold.remove(mapping)

    def extent(self, number: int) -> Mapping | None:
        """A mapped extent.

        Args:
            number: its id.
        """
        return self._extents.get(number)

    def copy(self, pool: int, extent: int, parts: NDArray[np.int64]) -> None:
        """Copies parts of a pool into an extent.

        Args:
            pool: source handle.
            extent: destination id.
            parts: int64[3, n]: sources, targets, lengths in bytes.

        Raises:
            ValueError: unknown numbers or a part out of bounds; nothing was copied then.
        """
        source = self._pools.get(pool)
        target = self._extents.get(extent)
        if source is None or target is None:
            raise ValueError(f"pool {pool} or extent {extent} is not mapped")
        joined = runs(parts)
        _check_bounds(joined, source, target)
        copy, to, out_of = np.copyto, target.view, source.view
        for start, at, size in joined:
            copy(to[at : at + size], out_of[start : start + size])

    @property
    def is_cold(self) -> bool:
        """Whether something still wants to be populated."""
        return bool(self._cold)

    def populate_step(self) -> None:
        """Populates the next stretch; kernels without the advice leave it to page faults."""
        mapping = self._cold[0]
        left_bytes = mapping.view.size - mapping.populated_bytes
        step_bytes = min(POPULATE_STEP_BYTES, left_bytes)
        done = (
            mapping.advice != 0
            and step_bytes > 0
            and self._madvise(
                mapping.view.ctypes.data + mapping.populated_bytes, step_bytes, mapping.advice
            )
            == 0
        )
        mapping.populated_bytes += step_bytes
        if not done or step_bytes == left_bytes:
            self._cold.popleft()


# Plain integers from here on, for jobs of some dozen parts: a copy streams through the caches, and
# after it every numpy call is a cold one.


def _check_bounds(joined: list[tuple[int, int, int]], source: Mapping, target: Mapping) -> None:
    pool_bytes, extent_bytes, first_byte = source.view.size, target.view.size, target.first_byte
    for start, at, size in joined:
        if size < 0:
            raise ValueError("a part begins outside the pool: its length is negative")
        if start < 0 or start + size > pool_bytes:
            raise ValueError("a part lies outside the pool")
        if at < first_byte or at + size > extent_bytes:
            raise ValueError("a part lies outside the extent")


def runs(parts: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Joins parts that lie side by side on both ends.

    Args:
        parts: int64[3, n]: sources, targets, lengths in bytes.

    Returns:
        (source, target, length) of each run, in order.
    """
    joined: list[tuple[int, int, int]] = []
    source_end = target_end = -1
    for source, target, length in zip(*parts.tolist(), strict=True):
        if length >= 0 and source == source_end and target == target_end:
            first_source, first_target, so_far = joined[-1]
            joined[-1] = (first_source, first_target, so_far + length)
        else:
            joined.append((source, target, length))
        source_end, target_end = source + length, target + length
    return joined
