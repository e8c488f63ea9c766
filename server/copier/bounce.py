"""The bounce buffer: page-locked memory of the copier's own that pages pass through.

Purpose: the copier does not page-lock the arena (fault P18), so its pinned memory stays small
whatever the arena's size: one buffer, in slots of one piece each. Must not know: jobs, streams.
Runs in: a device copier's main thread; other threads read slots that were handed to them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import Device

SLOT_BYTES = 8 << 20
"""Bytes of a piece: some 150 us at the speed of a PCIe link of the fifth generation, so that what
a piece costs in Python is small beside it."""

BOUNCE_BYTES = 128 << 20
"""Twice the server's window of copies, so that the window stays the bound."""


class Bounce:
    """Slots of one page-locked buffer.

    Args:
        device: bound to the calling thread.
        num_bytes: of the buffer, a multiple of ``slot_bytes``.
        slot_bytes: of a slot.

    Raises:
        DeviceError: there is no such memory.

    Attributes:
        slot_bytes: of a slot.
    """

    def __init__(
        self, device: Device, num_bytes: int = BOUNCE_BYTES, slot_bytes: int = SLOT_BYTES
    ) -> None:
        self._buffer = device.pinned_buffer(num_bytes)
        self._free = list(range(num_bytes // slot_bytes))
        self.slot_bytes = slot_bytes

    @property
    def num_free(self) -> int:
        """Slots that nobody has."""
        return len(self._free)

    def take(self) -> int:
        """Takes a slot; the one given back last, which the caches may still hold.

        Raises:
            IndexError: none is free.
        """
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Frees a slot that no copy writes or reads any more."""
        self._free.append(slot)

    def address(self, slot: int) -> int:
        """Its first byte, as the device is told."""
        return self._buffer.address + slot * self.slot_bytes

    def view(self, slot: int) -> NDArray[np.uint8]:
        """Its bytes: uint8[slot_bytes]."""
        return self._buffer.view[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def close(self) -> None:
        """Frees the buffer; no copy from or to it may be under way."""
        self._buffer.close()
