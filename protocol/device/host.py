"""Host memory as a device: copies are done when the call returns, and every event is done.

For pools in host memory, whose order the engine's own rules keep; a stream means nothing here.

Must not know: pages, slots, requests, sockets. Any thread.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import (
    Batch,
    DeviceError,
    DeviceMemory,
    Direction,
    Exported,
    Opened,
    Place,
)

HOST_UUID = b"HOST-MEMORY-OF-1"
"""Of no device; 16 bytes as of any."""


class HostEvent:
    """A point that is always reached."""

    def query(self) -> bool:
        """True."""
        return True


class HostStream:
    """A stream in which nothing ever waits."""

    device_uuid = HOST_UUID

    def close(self) -> None:
        """Nothing to give back."""


class HostPinned:
    """Host memory needs no page-locking for the host."""

    is_read_only = False

    def close(self) -> None:
        """Nothing to end."""


class HostBuffer:
    """Memory of our own, on pages of its own.

    Args:
        num_bytes: length.
    """

    def __init__(self, num_bytes: int) -> None:
        self.view: NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, num_bytes), dtype=np.uint8)
        self.address = int(self.view.ctypes.data)

    def close(self) -> None:
        """The memory goes with the last array over it."""


class HostDeviceBuffer:
    """Plain memory in the place of a device's.

    Args:
        num_bytes: length.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._held = HostBuffer(num_bytes)
        self.address = self._held.address

    def close(self) -> None:
        """The memory goes with this object."""


class HostDevice:
    """The host's memory."""

    uuid = HOST_UUID
    name = "host memory"
    numa_node: int | None = None

    def bind(self) -> None:
        """Nothing to bind."""

    def place(self, address: int) -> Place | None:
        """None: plain host memory."""
        return None

    def create_stream(self) -> HostStream:
        """A stream in which nothing ever waits."""
        return HostStream()

    def borrow_stream(self, stream: object) -> HostStream:
        """A stream in which nothing ever waits, whatever the engine's is."""
        return HostStream()

    def record(self, stream: object) -> HostEvent:
        """A point that is reached."""
        return HostEvent()

    def wait(self, stream: object, event: object) -> None:
        """Nothing to wait for."""

    def copy(self, stream: object, batch: Batch, direction: Direction) -> None:
        """Copies at once."""
        columns = (batch.targets.tolist(), batch.sources.tolist(), batch.sizes.tolist())
        for target, source, size in zip(*columns, strict=True):
            ctypes.memmove(target, source, size)

    def export(self, address: int) -> Exported:
        """Refuses: host memory is shared by descriptors, not by handles."""
        raise DeviceError("cudaErrorNotSupported", "a handle of host memory")

    def open(self, handle: bytes) -> Opened:
        """Refuses: host memory is shared by descriptors, not by handles."""
        raise DeviceError("cudaErrorNotSupported", "a handle of host memory")

    def pin(self, address: int, num_bytes: int) -> HostPinned:
        """Nothing to lock."""
        return HostPinned()

    def pinned_over(self, address: int, num_bytes: int) -> HostPinned:
        """Nothing to lock."""
        return HostPinned()

    def pinned_buffer(self, num_bytes: int) -> HostBuffer:
        """Plain memory."""
        return HostBuffer(num_bytes)

    def allocate(self, num_bytes: int) -> HostDeviceBuffer:
        """Plain memory."""
        return HostDeviceBuffer(num_bytes)

    def memory(self) -> DeviceMemory:
        """Nothing is counted: the host has its own ways to tell."""
        return DeviceMemory(0, 0)
