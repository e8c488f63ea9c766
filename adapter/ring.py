"""The staging ring: shared memory of our own that pages are copied into where the pool is private.

Purpose: give out slots, one per page, and take each back exactly once. A slot is given out again
only after whoever was to read it has answered; what is lent to a server that does not answer is
kept apart by the saver. Must not know: requests, sockets, when a slot may come back. All access to
the book-keeping is under the saver's lock; the bytes are written by the saver's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adapter.geometry import Geometry
from adapter.pages import SharedPool
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

    def __init__(self, geometry: Geometry, num_bytes: int = RING_BYTES) -> None:
        """Allocates it.

        Args:
            geometry: of the engine.
            num_bytes: wanted size.

        Raises:
            OSError: memory or seals are not to be had.
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
