"""The staging ring: shared memory of our own that pages are copied into where the pool is private.

Purpose: give out slots, one per page, and take each back exactly once. A slot is given out again
only after whoever was to read it has answered; what is lent to a server that does not answer is
kept apart by the saver. For a pool on a device the ring is page-locked, so that the device writes
into it directly. Must not know: requests, sockets, when a slot may come back. All access to the
book-keeping is under the saver's lock; the bytes are written by the saver's thread, or by the
device on its behalf.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adapter.geometry import Geometry
from adapter.pages import SharedPool
from protocol.device.interface import Device, DeviceError, Pinned
from protocol.layout import Region, ShardPool

RING_BYTES: Final = 64 << 20
"""Wanted size; a ring holds at least two chunks of each group and at most the whole pool."""

MIN_CHUNKS: Final = 2


@dataclass(frozen=True, eq=False)
class Lot:
    """Slots lent together; given back once.

    Attributes:
        group: layer group.
        slots: int32[num_pages].
    """

    group: int
    slots: NDArray[np.int32]


class StagingRing:
    """One memfd with slots for the pages of each layer group.

    Attributes:
        chunk_blocks: slots of one chunk.
    """

    def __init__(
        self, geometry: Geometry, num_bytes: int = RING_BYTES, device: Device | None = None
    ) -> None:
        """Allocates it, and page-locks it for a device, which takes a moment (fault P18).

        Args:
            geometry: of the engine.
            num_bytes: wanted size.
            device: of the pool; None for host memory.

        Raises:
            OSError: memory or seals are not to be had.
            DeviceError: it cannot be page-locked.
        """
        self.chunk_blocks = geometry.chunk_blocks
        chunk_bytes = sum(group.page_bytes for group in geometry.groups) * self.chunk_blocks
        slots = max(MIN_CHUNKS, num_bytes // chunk_bytes) * self.chunk_blocks
        self._page_bytes = [group.page_bytes for group in geometry.groups]
        self._num_slots = [min(slots, group.num_pages) for group in geometry.groups]
        self._offsets = [0]
        for count, size in zip(self._num_slots, self._page_bytes, strict=True):
            self._offsets.append(self._offsets[-1] + count * size)
        self._pool = SharedPool.create(self._offsets[-1])
        self._view = self._pool.view
        self._unlock: weakref.finalize[..., StagingRing] | None = None
        if device is not None:
            locked = -(-self._pool.num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            pinned = device.pinned_over(self._pool.address, locked)
            # Before the memory goes, which the pool's last reference decides; not at the end of
            # the process, which ends the lock by itself and whose driver may be gone by then.
            self._unlock = weakref.finalize(self, _unlock, pinned, self._pool)
            self._unlock.atexit = False
        self._free = [list(range(count - 1, -1, -1)) for count in self._num_slots]
        self._lent: dict[Lot, None] = {}

    @property
    def fd(self) -> int:
        """The sealed memfd; not the caller's to close."""
        return self._pool.fd

    @property
    def num_bytes(self) -> int:
        """Its length."""
        return self._pool.num_bytes

    @property
    def num_lent(self) -> int:
        """Lots that were not given back."""
        return len(self._lent)

    @property
    def address(self) -> int:
        """Of its first byte in this process."""
        return self._pool.address

    def keep_for_good(self) -> None:
        """Never unlocks nor frees the memory: a device that hangs may write into it some day."""
        unlock, self._unlock = self._unlock, None
        if unlock is not None:
            _KEPT.append(unlock.detach())

    def num_slots(self, group: int) -> int:
        """All slots of a layer group."""
        return self._num_slots[group]

    def num_free(self, group: int) -> int:
        """Slots of a layer group that may be taken."""
        return len(self._free[group])

    def num_free_chunks(self, group: int) -> int:
        """Whole chunks of a layer group that fit now."""
        return len(self._free[group]) // self.chunk_blocks

    def shard_pools(self, shards: Sequence[int]) -> tuple[ShardPool, ...]:
        """Where the slots lie, as the server is told.

        Args:
            shards: this rank's shard of each layer group.
        """
        return tuple(
            ShardPool(
                shard=shard,
                num_pages=count,
                regions=(Region(offset_bytes=offset, size_bytes=size, stride_bytes=size),),
            )
            for shard, count, offset, size in zip(
                shards, self._num_slots, self._offsets[:-1], self._page_bytes, strict=True
            )
        )

    def take(self, group: int, num_pages: int) -> Lot | None:
        """Lends slots.

        Args:
            group: layer group.
            num_pages: positive.

        Returns:
            None when there are not as many; then none is taken.
        """
        free = self._free[group]
        if num_pages > len(free):
            return None
        taken = free[len(free) - num_pages :]
        del free[len(free) - num_pages :]
        lot = Lot(group, np.array(taken[::-1], dtype=np.int32))
        self._lent[lot] = None
        return lot

    def give_back(self, lot: Lot) -> None:
        """Nothing reads or writes these slots any more.

        Args:
            lot: from ``take``; one that was given back before is ignored.
        """
        if lot in self._lent:
            del self._lent[lot]
            self._free[lot.group] += lot.slots.tolist()[::-1]

    def give_back_all(self, lots: Iterable[Lot | None]) -> None:
        """``give_back`` for those that are lots."""
        for lot in lots:
            if lot is not None:
                self.give_back(lot)

    def addresses(self, lot: Lot) -> NDArray[np.int64]:
        """Where slots begin in this process.

        Args:
            lot: the slots.

        Returns:
            int64[num_pages].
        """
        begin = self._pool.address + self._offsets[lot.group]
        return begin + lot.slots.astype(np.int64) * self._page_bytes[lot.group]

    def page(self, group: int, slot: int) -> NDArray[np.uint8]:
        """The bytes of a slot.

        Args:
            group: layer group.
            slot: below ``num_slots(group)``.

        Returns:
            uint8[page_bytes], writable.
        """
        size = self._page_bytes[group]
        start = self._offsets[group] + slot * size
        return self._view[start : start + size]


_KEPT: Final[list[object]] = []
"""What ``keep_for_good`` keeps, one entry for each device that hung."""


def _unlock(pinned: Pinned, pool: SharedPool) -> None:
    # The pool comes along as an argument, so that its memory outlives the lock.
    with contextlib.suppress(DeviceError):  # a device that failed holds no lock that matters
        pinned.close()
    pool.close()
