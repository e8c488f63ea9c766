"""State of every slot of the arena, in arrays indexed by an arena-wide slot number.

Purpose: one number names a slot whatever extent it lies in, so that pins, generations and slot
descriptors of a whole lease are handled with a few array operations. An extent occupies a run of
numbers; runs of removed extents are used again. Must not know: keys, engines, files. Runs in:
the loop thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ExtentId
from protocol.layout import SLOT_DTYPE
from server.core.integrity import require

FREE, RESERVED, HELD, ZOMBIE = 0, 1, 2, 3
"""Empty; taken by a STORE; published; forgotten by the index and still read by someone."""

NO_NODE = -1
_FIRST_CAPACITY = 1024

_STEP = 1 << 16
"""Slots by which the table grows within what it was made for."""

Slots = NDArray[np.int64]
"""int64[n], arena-wide slot numbers."""


class SlotTable:
    """The arrays.

    Args:
        room: about how many slots there may come to be. Memory for so many is asked for at once,
            costs nothing before it is used, and need not be copied when the table grows.

    Attributes:
        state: uint8[capacity], FREE, RESERVED, HELD or ZOMBIE.
        pins: int32[capacity], readers that may still read the slot.
        node: int32[capacity], index node, or NO_NODE.
        generation: uint64[capacity], as the slot's record in the file carries it: 0 before the
            first publish, and from the moment a STORE takes the slot again.
        extent: uint32[capacity], id of the slot's extent, 0 for none.
        local: uint32[capacity], index within the extent.
        tiers: uint8[capacity], which tiers have, or are being given, what a HELD slot holds: bit
            ``t`` for tier ``t``. A hint: a tier may have lost it.
        sealed: uint8[capacity], 1 while processes of a former server may touch the slot: what it
            holds may be read, and nothing may be put there.
        state_of: the same memory as ``state``, quicker for one element.
        pins_of: likewise for ``pins``.
        node_of: likewise for ``node``.
        extent_of: likewise for ``extent``.
        sealed_of: likewise for ``sealed``.
        tiers_of: likewise for ``tiers``.
    """

    state: NDArray[np.uint8]
    pins: NDArray[np.int32]
    node: NDArray[np.int32]
    generation: NDArray[np.uint64]
    extent: NDArray[np.uint32]
    local: NDArray[np.uint32]
    sealed: NDArray[np.uint8]
    tiers: NDArray[np.uint8]

    def __init__(self, room: int = 0) -> None:
        self._room = room
        self._made = 0
        self._capacity = 0
        self._runs: list[tuple[int, int]] = []
        kinds = {
            "state": np.uint8,
            "pins": np.int32,
            "node": np.int32,
            "generation": np.uint64,
            "extent": np.uint32,
            "local": np.uint32,
            "sealed": np.uint8,
            "tiers": np.uint8,
        }
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.zeros(0, kind) for name, kind in kinds.items()
        }
        self._grow(_FIRST_CAPACITY)

    def _grow(self, capacity: int) -> None:
        if capacity > self._made:
            self._made = max(capacity, self._room)
            for name, old in self._arrays.items():
                self._arrays[name] = np.zeros(self._made, old.dtype)
                self._arrays[name][: self._capacity] = old[: self._capacity]
        # The rest costs nothing before it is touched, so nobody is to look at more than this.
        self._arrays["node"][self._capacity : capacity] = NO_NODE
        for name, whole in self._arrays.items():
            setattr(self, name, whole[:capacity])
        self.state_of = self.state.data
        self.pins_of = self.pins.data
        self.node_of = self.node.data
        self.extent_of = self.extent.data
        self.sealed_of = self.sealed.data
        self.tiers_of = self.tiers.data
        self._give_back(self._capacity, capacity - self._capacity)
        self._capacity = capacity

    def add_extent(self, extent: int, num_slots: int) -> int:
        """Takes a run of slot numbers for a new extent.

        Args:
            extent: its id, 1 and up.
            num_slots: length of the run.

        Returns:
            The first number; all of the run are FREE.
        """
        while True:
            for index, (base, length) in enumerate(self._runs):
                if length >= num_slots:
                    rest = [(base + num_slots, length - num_slots)] if length > num_slots else []
                    self._runs[index : index + 1] = rest
                    run = slice(base, base + num_slots)
                    self.extent[run] = extent
                    self.local[run] = np.arange(num_slots, dtype=np.uint32)
                    return base
            self._grow(self._next_capacity(num_slots))

    def _next_capacity(self, num_slots: int) -> int:
        least = self._capacity + num_slots
        wanted = self._capacity + max(num_slots, min(self._capacity, _STEP))
        if wanted <= self._made:
            return wanted
        return least if least <= self._made else max(2 * self._capacity, least)

    def remove_extent(self, base: int, num_slots: int) -> None:
        """Gives a run of numbers back; all of it must be FREE and unpinned."""
        run = slice(base, base + num_slots)
        require(not self.state[run].any(), "a removed extent has no used slot", base)
        require(not self.sealed[run].any(), "a removed extent is not sealed", base)
        self.extent[run] = 0
        self.generation[run] = 0
        self._give_back(base, num_slots)

    def _give_back(self, base: int, length: int) -> None:
        runs = sorted([*self._runs, (base, length)])
        merged: list[tuple[int, int]] = []
        for start, size in runs:
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            elif size:
                merged.append((start, size))
        self._runs = merged

    def pin(self, slots: Slots, readers: int) -> None:
        """Adds pins.

        Args:
            slots: int64[n], each at most once.
            readers: pins to add to each.
        """
        self.pins[slots] += np.int32(readers)

    def unpin(self, slots: Slots) -> Slots:
        """Takes one pin from each slot.

        Args:
            slots: int64[n], each at most once, all pinned.

        Returns:
            int64[m], those that nobody reads any more.
        """
        left = self.pins[slots] - np.int32(1)
        self.pins[slots] = left
        idle: Slots = slots[left == 0]
        return idle

    def by_extent(self, slots: Slots) -> list[tuple[ExtentId, Slots]]:
        """Sorts slots by the extent they lie in.

        Args:
            slots: int64[n], at least one.

        Returns:
            Each extent once, with its slots in the order given.
        """
        extents = self.extent[slots]
        if bool((extents == extents[0]).all()):
            return [(ExtentId(int(extents[0])), slots)]
        # Not np.unique: its first call imports for 20 ms, in the loop.
        return [(ExtentId(one), slots[extents == one]) for one in sorted(set(extents.tolist()))]

    def descriptors(self, slots: NDArray[np.signedinteger[Any]]) -> bytes:
        """Slot descriptors for a reply.

        Args:
            slots: int[...], slot numbers, or negative for none.

        Returns:
            SLOT_DTYPE of the same shape, as bytes.
        """
        rows = np.empty(slots.shape, dtype=SLOT_DTYPE)
        rows["extent"] = self.extent[slots]
        rows["slot"] = self.local[slots]
        rows["generation"] = self.generation[slots]
        rows[slots < 0] = 0
        return rows.tobytes()

    def check(self) -> None:
        """Checks that runs and extents tile the numbers.

        Raises:
            IntegrityError: names what is wrong.
        """
        free = np.zeros(self._capacity, dtype=bool)
        for base, length in self._runs:
            require(not free[base : base + length].any(), "free runs are apart", base, length)
            free[base : base + length] = True
        used = self.extent != 0
        require(bool((free == ~used).all()), "a number is in an extent or in a free run")
        idle = (self.state == FREE) & used
        require(not self.pins[idle].any(), "a free slot has no pins")
        require(bool((self.pins >= 0).all()), "pins are not negative")
        require(bool((self.node[idle] == NO_NODE).all()), "a free slot has no node")
        require(bool((self.pins[self.state == ZOMBIE] > 0).all()), "a forgotten slot is read")
        held = self.state == HELD
        require(bool((self.generation[held] > 0).all()), "a held slot has a generation")
        generations = self.generation[held]
        require(np.unique(generations).size == generations.size, "generations are unique")
