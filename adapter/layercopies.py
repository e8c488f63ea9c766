"""A load copied one layer at a time, a whole layer in as few calls as its slots' order allows.

A layer's share of a page is short, some tens of KiB, and so many copies of it that a call for each
would take longer than the bytes and want the interpreter's lock as often, which the forward's
thread needs meanwhile. Pages that lie at even distances in an extent, as those of a chain mostly
do, are copied by one call for each layer, wherever in the pool they go; numpy holds no lock in it.

Must not know: requests, streams, who waits. Runs in: the loader's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adapter.copy import HeldLoad, Place, check_generations, stopped
from adapter.pagememory import Cut, GroupPages, LayerSlice


@dataclass(frozen=True)
class _Strip:
    """Wanted pages at even distances in one extent.

    Attributes:
        extent: its number.
        first: first byte of the first page there.
        stride: distance of one page to the next, bytes; negative where slots go backwards.
        pages: intp[n], where they go.
    """

    extent: int
    first: int
    stride: int
    pages: NDArray[np.intp]


class LayerCopies:
    """Belongs to one thread at a time, as its load does."""

    def __init__(self, load: HeldLoad) -> None:
        """Copies nothing yet.

        Args:
            load: held for as long as this is used.
        """
        self._extents = load.extents
        self._groups = [(group, memory, _strips(places)) for group, memory, places in load.groups]
        rows: dict[int, list[tuple[int, int]]] = {}
        for number, slot, generation in load.rows:
            rows.setdefault(number, []).append((slot, generation))
        self._slots = [
            (
                number,
                np.array([slot for slot, _ in pairs], dtype=np.intp),
                np.array([generation for _, generation in pairs], dtype=np.uint64),
            )
            for number, pairs in rows.items()
        ]

    def copy(
        self, slices: Sequence[LayerSlice], is_stopped: Callable[[], bool] | None = None
    ) -> None:
        """Copies one layer's bytes of each page.

        Args:
            slices: where the layer lies.
            is_stopped: asked before each call, where the memory may be taken away.

        Raises:
            LoadError: it was stopped.
        """
        for group, memory, strips in self._groups:
            for piece in slices:
                if piece.group == group and strips:
                    for cut in memory.cuts(piece.start_byte, piece.num_bytes):
                        self._copy(memory, cut, strips, is_stopped)

    def check(self) -> None:
        """The tripwire, as ``HeldLoad.check``.

        Raises:
            LoadError: a slot was reused before the bytes copied so far had left it.
        """
        for number, slots, wanted in self._slots:
            check_generations(number, self._extents[number].generations, slots, wanted)

    def _copy(
        self,
        memory: GroupPages,
        cut: Cut,
        strips: Sequence[_Strip],
        is_stopped: Callable[[], bool] | None,
    ) -> None:
        shape = (memory.num_pages, cut.num_bytes)
        # Made by the constructor, which sees to it that no row leaves its buffer.
        targets = _rows(memory.parts[cut.part].host, shape, cut.part_byte, cut.stride)
        for strip in strips:
            if is_stopped is not None and is_stopped():
                raise stopped()
            view, shape = self._extents[strip.extent].view, (len(strip.pages), cut.num_bytes)
            sources = _rows(view, shape, strip.first + cut.page_byte, strip.stride)
            if len(strip.pages) == 1:
                targets[strip.pages[0]] = sources[0]
            else:
                targets[strip.pages] = sources


def _rows(
    flat: NDArray[np.uint8], shape: tuple[int, int], first: int, stride: int
) -> NDArray[np.uint8]:
    rows: NDArray[np.uint8] = np.ndarray(shape, np.uint8, flat, first, (stride, 1))
    return rows


def _strips(places: Sequence[Place]) -> list[_Strip]:
    """As long as they come, in order."""
    strips: list[_Strip] = []
    pages: list[int] = []
    extent = first = stride = 0
    for owner, source, page in places:
        if pages and owner == extent:
            if len(pages) == 1:
                stride = source - first
            if source == first + stride * len(pages):
                pages.append(page)
                continue
        if pages:
            strips.append(_Strip(extent, first, stride, np.array(pages, dtype=np.intp)))
        extent, first, stride, pages = owner, source, 0, [page]
    if pages:
        strips.append(_Strip(extent, first, stride, np.array(pages, dtype=np.intp)))
    return strips
