"""Copies pages, or the slices of one layer, from the engine's pool into ring slots.

Host memory is copied here; memory of a device by ``ringcopies``. Must not know: requests,
sockets, whether the bytes are right. Runs in: the saver's thread, which holds no lock meanwhile;
numpy lets other threads run during each copy of a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adapter.journal import Journal
from adapter.pagememory import Cut, GroupPages, LayerSlice, PageMemory
from adapter.ring import Lot, StagingRing
from adapter.ringcopies import RingCopies
from adapter.stagedrun import StagedRun

PIECE_BYTES: Final = 16 << 20
"""A STORE out of the ring has about so many bytes at most, so that copies and pulls overlap."""


class Stager:
    """Copies for one saver; what goes wrong costs a save, not the thread."""

    def __init__(self, memory: PageMemory, ring: StagingRing, journal: Journal) -> None:
        """Copies nothing yet.

        Args:
            memory: the engine's pages.
            ring: where they go.
            journal: takes what goes wrong.
        """
        self._memory = memory
        self._ring = ring
        self._journal = journal
        device = memory.device
        self._ring_copies = None if device is None else RingCopies(device, ring)

    def stage(self, lot: Lot, pages: NDArray[np.int32]) -> bool:
        """Copies whole pages; False when that failed.

        Args:
            lot: slots of the ring.
            pages: int32[n], one page for each slot.
        """
        try:
            if self._ring_copies is None:
                stage_pages(self._memory, self._ring, lot, pages)
            else:
                group = self._memory.groups[lot.group]
                _check(group, pages)
                self._ring_copies.run(group, group.whole, lot, pages)
        except Exception as error:  # noqa: BLE001 - one save is dropped
            self._journal.report("stagings_failed", f"a save is dropped: {error!r}")
            return False
        return True

    def stage_layer(self, layer: int, runs: Sequence[StagedRun]) -> bool:
        """Copies one model layer of some chunks; False when that failed.

        Args:
            layer: model layer.
            runs: chunks and their slots.
        """
        try:
            slices = self._memory.layers[layer]
            for run in runs:
                if self._ring_copies is None:
                    stage_layer(self._memory, self._ring, run.lot, run.pages, slices)
                    continue
                group = self._memory.groups[run.lot.group]
                _check(group, run.pages)
                cuts = _cuts(group, run.lot.group, slices)
                self._ring_copies.run(group, cuts, run.lot, run.pages)
        except Exception as error:  # noqa: BLE001 - whole pages are copied once confirmed
            self._journal.report("stagings_failed", f"a layer was not staged: {error!r}")
            return False
        return True


def stage_pages(memory: PageMemory, ring: StagingRing, lot: Lot, pages: NDArray[np.int32]) -> None:
    """Copies whole pages.

    Args:
        memory: the engine's.
        ring: where to.
        lot: slots of the ring.
        pages: int32[n], one page for each slot.

    Raises:
        IndexError: a page outside the pool.
    """
    group = memory.groups[lot.group]
    _check(group, pages)
    parts = [(part.host, part.stride_bytes, part.size_bytes) for part in group.parts]
    for page, slot in zip(pages.tolist(), lot.slots.tolist(), strict=True):
        target, at = ring.page(lot.group, slot), 0
        for flat, stride, size in parts:
            start = page * stride
            target[at : at + size] = flat[start : start + size]
            at += size


def stage_layer(
    memory: PageMemory,
    ring: StagingRing,
    lot: Lot,
    pages: NDArray[np.int32],
    slices: Sequence[LayerSlice],
) -> None:
    """Copies the bytes of one model layer in pages.

    Args:
        memory: the engine's.
        ring: where to.
        lot: slots of the ring.
        pages: int32[n], one page for each slot.
        slices: where the layer lies; those of other groups are skipped.

    Raises:
        IndexError: a page outside the pool.
    """
    group = memory.groups[lot.group]
    _check(group, pages)
    runs = [
        (group.parts[cut.part].host, cut.stride, cut.part_byte, cut.page_byte, cut.num_bytes)
        for cut in _cuts(group, lot.group, slices)
    ]
    for page, slot in zip(pages.tolist(), lot.slots.tolist(), strict=True):
        target = ring.page(lot.group, slot)
        for flat, stride, inside, at, size in runs:
            start = page * stride + inside
            target[at : at + size] = flat[start : start + size]


def _cuts(group: GroupPages, number: int, slices: Sequence[LayerSlice]) -> list[Cut]:
    """Where a layer's bytes of one group's pages lie."""
    own = [piece for piece in slices if piece.group == number]
    return [cut for piece in own for cut in group.cuts(piece.start_byte, piece.num_bytes)]


def _check(group: GroupPages, pages: NDArray[np.int32]) -> None:
    if pages.size and (int(pages.min()) < 0 or int(pages.max()) >= group.num_pages):
        raise IndexError(f"page ids must lie within 0..{group.num_pages - 1}")
