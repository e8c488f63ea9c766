"""The bounce buffer: page-locked memory of the copier's own that pages pass through.

Purpose: the copier does not page-lock the arena (fault P18), so its pinned memory stays small
whatever the arena's size: one buffer, in bays of one piece each. Must not know: jobs, streams.
Runs in: a device copier's main thread; other threads read bays that were handed to them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import Device

BAY_BYTES = 8 << 20
"""Bytes of a piece: some 150 us at the speed of a PCIe link of the fifth generation, so that what
a piece costs in Python is small beside it."""

BOUNCE_BYTES = 128 << 20
"""Twice the server's window of copies, so that the window stays the bound."""


class Bounce:
    """Bays of one page-locked buffer.

    Args:
        device: bound to the calling thread.
        num_bytes: of the buffer, a multiple of ``bay_bytes``.
        bay_bytes: of a bay.

    Raises:
        DeviceError: there is no such memory.

    Attributes:
        bay_bytes: of a bay.
    """

    def __init__(
        self, device: Device, num_bytes: int = BOUNCE_BYTES, bay_bytes: int = BAY_BYTES
    ) -> None:
        self._buffer = device.pinned_buffer(num_bytes)
        self._free = list(range(num_bytes // bay_bytes))
        self.bay_bytes = bay_bytes

    @property
    def num_free(self) -> int:
        """Bays that nobody has."""
        return len(self._free)

    def take(self) -> int:
        """Takes a bay; the one given back last, which the caches may still hold.

        Raises:
            IndexError: none is free.
        """
        return self._free.pop()

    def give_back(self, bay: int) -> None:
        """Frees a bay that no copy writes or reads any more."""
        self._free.append(bay)

    def address(self, bay: int) -> int:
        """Its first byte, as the device is told."""
        return self._buffer.address + bay * self.bay_bytes

    def view(self, bay: int) -> NDArray[np.uint8]:
        """Its bytes: uint8[bay_bytes]."""
        return self._buffer.view[bay * self.bay_bytes : (bay + 1) * self.bay_bytes]

    def close(self) -> None:
        """Frees the buffer; no copy from or to it may be under way."""
        self._buffer.close()
