"""Which slot a name is in, in eight bytes and a little for each.

Purpose: a dict of a million names would cost twice what all else about them does. Here a cell of an
open-addressed table holds a place and one byte of the name's hash; the name itself is compared
where it lies, in the segment's rows. Must not know: segments. Runs in: the porter; the catalog's
lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xxhash
from numpy.typing import NDArray

MAX_PLACE = (1 << 56) - 1
_PLACE_BITS = 56
_LEAST_CELLS = 1024
_MOST_FULL = 0.6

digest: Callable[[bytes], int] = xxhash.xxh3_64_intdigest


class NameTable:
    """Names to places; a place is a positive number up to MAX_PLACE.

    Attributes:
        count: names in it.
    """

    def __init__(self, name_at: Callable[[int], bytes]) -> None:
        """An empty one.

        Args:
            name_at: the name at a place that is in the table.
        """
        self._name_at = name_at
        self.count = 0
        self._make(_LEAST_CELLS)

    def _make(self, num_cells: int) -> None:
        # Read and written one by one, which a view does faster than an array.
        self._array = np.zeros(num_cells, np.uint64)
        self._cells = self._array.data.cast("B").cast("Q")
        self._mask = num_cells - 1

    def find(self, name: bytes) -> int:
        """The place of a name, or 0."""
        return self._cells[self._at(name)] & MAX_PLACE

    def add(self, name: bytes, place: int) -> None:
        """Enters a name that is not in it.

        Args:
            name: of the place.
            place: whose name it is from now on.
        """
        if self.count >= _MOST_FULL * len(self._cells):
            self._grow(1)
        hashed = digest(name)
        at = hashed & self._mask
        while self._cells[at]:
            at = (at + 1) & self._mask
        self._cells[at] = hashed >> _PLACE_BITS << _PLACE_BITS | place
        self.count += 1

    def add_all(self, names: bytes, length: int, places: NDArray[np.uint64]) -> None:
        """Enters many at once.

        Args:
            names: one behind the other; none of them is in the table, and none comes twice.
            length: of each.
            places: uint64[n].
        """
        self._grow(len(places))
        hashes = np.fromiter(
            (digest(names[at : at + length]) for at in range(0, len(names), length)),
            np.uint64,
            len(places),
        )
        self._enter(hashes, places)
        self.count += len(places)

    def remove(self, name: bytes) -> None:
        """Takes out a name that is in it; whatever was pushed on by it moves up."""
        cells, mask = self._cells, self._mask
        hole = self._at(name)
        assert cells[hole], "not in the table"
        at = (hole + 1) & mask
        while cells[at]:
            home = digest(self._name_at(cells[at] & MAX_PLACE)) & mask
            if (at - home) & mask >= (at - hole) & mask:
                cells[hole], hole = cells[at], at
            at = (at + 1) & mask
        cells[hole] = 0
        self.count -= 1

    def _at(self, name: bytes) -> int:
        """The cell of a name, or the empty one where it would be."""
        cells, mask, hashed = self._cells, self._mask, digest(name)
        at, tag = hashed & mask, hashed >> _PLACE_BITS
        while cell := cells[at]:
            if cell >> _PLACE_BITS == tag and self._name_at(cell & MAX_PLACE) == name:
                break
            at = (at + 1) & mask
        return at

    def _grow(self, more: int) -> None:
        num_cells = len(self._cells)
        while self.count + more > _MOST_FULL * num_cells:
            num_cells *= 2
        if num_cells == len(self._cells):
            return
        places = self._array[self._array != 0] & np.uint64(MAX_PLACE)
        hashes = np.fromiter(
            (digest(self._name_at(place)) for place in places.tolist()), np.uint64, len(places)
        )
        self._make(num_cells)
        self._enter(hashes, places)

    def _enter(self, hashes: NDArray[np.uint64], places: NDArray[np.uint64]) -> None:
        """Places many: of those that want one empty cell one gets it, the others try the next."""
        bits, one = np.uint64(_PLACE_BITS), np.uint64(1)
        mask = np.uint64(self._mask)
        wanted = hashes & mask
        cells = hashes >> bits << bits | places
        while len(cells):
            is_free = self._array[wanted] == 0
            self._array[wanted[is_free]] = cells[is_free]
            is_left = self._array[wanted] != cells
            wanted, cells = (wanted[is_left] + one) & mask, cells[is_left]
