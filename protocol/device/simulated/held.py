"""What a simulated device hands out: opened, page-locked and own memory, each to be closed once.

Must not know: pages, streams, files. Any thread that has bound the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import DeviceError
from protocol.device.simulated.memory import Range

if TYPE_CHECKING:
    from protocol.device.simulated.device import SimulatedDevice


class SimulatedOpened:
    """Another process's allocation in this one."""

    def __init__(self, device: SimulatedDevice, place: Range, token: bytes) -> None:
        """Of a range that is open."""
        assert place.content is not None
        self.base = place.base
        self.num_bytes = place.num_bytes
        self._array: NDArray[np.uint8] | None = place.content
        self._device = device
        self._token = token

    def as_array(self) -> NDArray[np.uint8]:
        """Its bytes, uint8[num_bytes]."""
        if self._array is None:
            raise DeviceError("cudaErrorInvalidResourceHandle", "simulated memory that was closed")
        return self._array

    def close(self) -> None:
        """Gives it back. Idempotent."""
        if self._array is not None:
            self._device.close_opened(self._token)
            self._array = None


class SimulatedPinned:
    """Host memory that the device may touch."""

    def __init__(self, device: SimulatedDevice, place: Range) -> None:
        """Of a range that is known."""
        self.is_read_only = not place.is_writable
        self._device = device
        self._place: Range | None = place

    def close(self) -> None:
        """Ends it. Idempotent."""
        if self._place is not None:
            self._device.forget(self._place)
            self._place = None


class SimulatedBuffer(SimulatedPinned):
    """Page-locked host memory of our own."""

    def __init__(self, device: SimulatedDevice, place: Range, view: NDArray[np.uint8]) -> None:
        """Of a range that is known."""
        super().__init__(device, place)
        self.view = view
        self.address = place.base


class SimulatedDeviceBuffer:
    """Device memory of our own."""

    def __init__(self, device: SimulatedDevice, address: int, num_bytes: int) -> None:
        """Of an allocation."""
        self.address = address
        self.num_bytes = num_bytes
        self._device: SimulatedDevice | None = device

    def close(self) -> None:
        """Frees it. Idempotent."""
        if self._device is not None:
            self._device.free(self.address)
            self._device = None
