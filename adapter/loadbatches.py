"""Loads as batches of copies: from pinned extents into pages of a device, checked afterwards.

What ``copy`` does for host memory at once is here worked out for a device's stream: which bytes go
where, found with a few array operations for thousands of pages. Whoever queues a batch keeps its
load, and with it the extents, until an event behind the batch is done, and then asks the tripwire.

Must not know: streams, events, requests. Runs in: the executor's thread; ``check`` in any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.copy import LoadError, ShardLoad, check_generations, extent_of
from adapter.extents import ExtentTable, MappedExtent
from adapter.pagememory import Cut, GroupPages, LayerSlice
from protocol.device.interface import Batch
from protocol.errors import ErrorCode
from protocol.ids import Epoch


@contextmanager
def held_device_load(
    table: ExtentTable, epoch: Epoch, shards: Sequence[ShardLoad]
) -> Iterator[DeviceLoad]:
    """Checks a load and keeps its extents mapped for the length of a ``with`` block.

    Args:
        table: this process's mapped extents, page-locked for the device.
        epoch: ``Joined.epoch`` at the time of the RETRIEVE.
        shards: what to load; memory of one device.

    Yields:
        The load; nothing is queued.

    Raises:
        LoadError: an extent is not mapped, or a descriptor or a page is out of range.
    """
    rows = [_Rows.wanted_of(shard) for shard in shards]
    numbers = {number for wanted in rows for number in np.unique(wanted.extents).tolist()}
    with table.hold(epoch, numbers) as extents:
        yield DeviceLoad(extents, shards, rows)


@dataclass(frozen=True)
class _Rows:
    """Chunks of one shard of which some page is wanted.

    Attributes:
        extents: int64[n].
        slots: int64[n].
        generations: uint64[n].
        pages: int64[n, chunk_blocks].
    """

    extents: NDArray[np.int64]
    slots: NDArray[np.int64]
    generations: NDArray[np.uint64]
    pages: NDArray[np.int64]

    @classmethod
    def wanted_of(cls, shard: ShardLoad) -> _Rows:
        slots, pages = shard.slots, shard.pages
        if pages.ndim != 2 or slots.ndim != 1 or len(pages) != len(slots):
            raise LoadError(
                ErrorCode.COUNT_MISMATCH,
                f"slots of shape {slots.shape} do not go with pages of shape {pages.shape}",
            )
        is_wanted = (pages != -1).any(axis=1)
        rows = slots[is_wanted]
        return cls(
            rows["extent"].astype(np.int64),
            rows["slot"].astype(np.int64),
            rows["generation"].astype(np.uint64),
            pages[is_wanted].astype(np.int64),
        )


@dataclass(frozen=True)
class _Places:
    """The wanted pages of one layer group.

    Attributes:
        group: index of the layer group.
        memory: its pages.
        sources: int64[n], address of each page's bytes in an extent.
        pages: int64[n], page ids.
    """

    group: int
    memory: GroupPages
    sources: NDArray[np.int64]
    pages: NDArray[np.int64]


class DeviceLoad:
    """A load that was found possible, its extents held. Belongs to one thread at a time.

    Attributes:
        num_pages: pages that are wanted.
        num_bytes: their bytes.
    """

    def __init__(
        self,
        extents: Mapping[int, MappedExtent],
        shards: Sequence[ShardLoad],
        rows: Sequence[_Rows],
    ) -> None:
        """Use ``held_device_load``."""
        self._extents = extents
        self._rows = rows
        self._groups: list[_Places] = []
        self.num_pages = self.num_bytes = 0
        for shard, wanted in zip(shards, rows, strict=True):
            _check_memory(shard.memory)
            places = _places(extents, shard, wanted)
            self._groups.append(places)
            self.num_pages += len(places.pages)
            self.num_bytes += len(places.pages) * shard.memory.page_bytes

    def whole(self) -> Batch:
        """All bytes of all pages."""
        return _joined(
            [_pieces(places, cut) for places in self._groups for cut in places.memory.whole]
        )

    def layer(self, slices: Sequence[LayerSlice]) -> Batch:
        """One layer's bytes of each page.

        Args:
            slices: where the layer lies.
        """
        return _joined(
            [
                _pieces(places, cut)
                for places in self._groups
                for piece in slices
                if piece.group == places.group
                for cut in places.memory.cuts(piece.start_byte, piece.num_bytes)
            ]
        )

    def check(self) -> None:
        """The tripwire: no slot was reused before the bytes copied so far had left it.

        Raises:
            LoadError: one was.
        """
        for rows in self._rows:
            for number in np.unique(rows.extents).tolist():
                is_here = rows.extents == number
                slots, wanted = rows.slots[is_here], rows.generations[is_here]
                check_generations(number, self._extents[number].generations, slots, wanted)


def join(batches: Sequence[Batch]) -> Batch:
    """Several batches as one.

    Args:
        batches: any number; their ranges do not overlap.
    """
    return _joined([(batch.targets, batch.sources, batch.sizes) for batch in batches])


_Pieces = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _pieces(places: _Places, cut: Cut) -> _Pieces:
    first = places.memory.parts[cut.part].address + cut.part_byte
    sizes = np.full(len(places.pages), cut.num_bytes, dtype=np.int64)
    return first + places.pages * cut.stride, places.sources + cut.page_byte, sizes


def _joined(pieces: Sequence[_Pieces]) -> Batch:
    if len(pieces) == 1:
        return Batch(*pieces[0])
    nothing: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    columns = zip(*pieces, strict=True) if pieces else ([nothing],) * 3
    return Batch(*(np.concatenate(column) for column in columns))


def _places(extents: Mapping[int, MappedExtent], shard: ShardLoad, rows: _Rows) -> _Places:
    page_bytes, num_pages = shard.memory.page_bytes, shard.memory.num_pages
    firsts = _first_bytes(extents, rows, rows.pages.shape[1] * page_bytes)
    each = np.arange(rows.pages.shape[1], dtype=np.int64) * page_bytes
    is_wanted = rows.pages != -1
    pages = rows.pages[is_wanted]
    is_outside = (pages < 0) | (pages >= num_pages)
    if is_outside.any():
        raise LoadError(
            ErrorCode.PAGE_OUT_OF_RANGE,
            f"page {pages[is_outside][0]} is not within 0..{num_pages - 1} of group {shard.group}",
        )
    return _Places(shard.group, shard.memory, (firsts[:, None] + each)[is_wanted], pages)


def _first_bytes(
    extents: Mapping[int, MappedExtent], rows: _Rows, chunk_bytes: int
) -> NDArray[np.int64]:
    """int64[n]: the address of each chunk's slot."""
    firsts = np.empty(len(rows.slots), dtype=np.int64)
    for number in np.unique(rows.extents).tolist():
        extent = extent_of(extents, number, chunk_bytes)
        geometry = extent.geometry
        is_here = rows.extents == number
        slots = rows.slots[is_here]
        if int(slots.max()) >= geometry.num_slots:
            raise LoadError(
                ErrorCode.INVALID_ARGUMENT,
                f"slot {slots.max()} is not within 0..{geometry.num_slots - 1} of extent {number}",
            )
        address = _address(extent.view) + geometry.data_offset_bytes
        firsts[is_here] = address + slots * geometry.slot_bytes
    return firsts


def _address(view: NDArray[np.uint8]) -> int:
    interface: dict[str, Any] = view.__array_interface__
    return int(interface["data"][0])


def _check_memory(memory: GroupPages) -> None:
    for part in memory.parts:
        if part.flat is not None or part.address <= 0:
            raise LoadError(ErrorCode.POOL_INVALID, "the pages are not memory of a device")
        needed = part.stride_bytes * (memory.num_pages - 1) + part.size_bytes
        if needed > part.span_bytes:
            raise LoadError(
                ErrorCode.POOL_INVALID,
                f"{memory.num_pages} pages do not fit into {part.span_bytes} bytes",
            )
