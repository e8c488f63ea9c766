"""What the server's copiers and the engines' adapters ask of a device: the one seam to CUDA.

Both ends of a shared pool must mean the same by a handle, by "a point in a stream" and by "copied",
so both stand on this interface. Its implementations are host memory (``host``), CUDA (``cuda``) and
a simulated CUDA for tests (``simulated``); ``backends`` finds the one that some memory belongs to.

Rules that every implementation keeps (fault P05; host contract rules 5, 10 and 13):

* Nothing here waits for a device, except where a docstring says so.
* Events are of the process that recorded them. No stream waits on another process's event: who has
  to tell somebody polls ``Event.query`` on a thread of its own, and then sends a message.
* An event is recorded once. A wait takes the record as it was made before the call.

Must not know: pages, slots, requests, sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

HANDLE_BYTES = 64
"""Length of an exported handle. Source: CUDA_IPC_HANDLE_SIZE."""

UUID_BYTES = 16


class DeviceError(Exception):
    """A device call failed.

    Attributes:
        code: the device's own name of the error, e.g. ``cudaErrorIllegalAddress``.
        is_sticky: nothing of this process will work on the device any more.
    """

    def __init__(self, code: str, what: str, is_sticky: bool = False) -> None:
        """``what`` was tried, in a few words."""
        super().__init__(f"{what}: {code}")
        self.code = code
        self.is_sticky = is_sticky


class MemoryKind(Enum):
    """How memory was made, which decides how it may be shared."""

    HOST = "host"
    """Memory of the process, page-locked or not."""
    DEVICE = "device"
    """One allocation of its own (cudaMalloc): can be exported by a handle."""
    VIRTUAL = "virtual"
    """Mapped from physical pieces (virtual memory management): not exported by a handle."""
    MANAGED = "managed"
    """Moves between host and device: not exported."""


@dataclass(frozen=True)
class Place:
    """What is known of an address.

    Attributes:
        kind: of the memory.
        device_uuid: 16 bytes of the device that owns it; empty for host memory.
        base: first byte of its allocation, or of the mapped range that it lies in.
        num_bytes: length of that.
    """

    kind: MemoryKind
    device_uuid: bytes
    base: int
    num_bytes: int


@dataclass(frozen=True)
class Exported:
    """An allocation as another process can open it.

    Attributes:
        handle: 64 bytes, naming the whole allocation.
        device_uuid: 16 bytes.
        base: the allocation's first byte in this process; offsets are counted from here.
        num_bytes: the allocation's length.
    """

    handle: bytes
    device_uuid: bytes
    base: int
    num_bytes: int


@dataclass(frozen=True)
class Batch:
    """Copies that go together, in no order among each other; ranges do not overlap.

    Addresses are absolute and of this process. One side of every copy is device memory, the other
    page-locked host memory or device memory as well; the host side of all is the same side.

    Attributes:
        targets: int64[n], first byte of each.
        sources: int64[n].
        sizes: int64[n], bytes, positive.
    """

    targets: NDArray[np.int64]
    sources: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        """Bytes of all."""
        return int(self.sizes.sum())


class Direction(Enum):
    """Of a batch."""

    TO_DEVICE = "to device"
    TO_HOST = "to host"


@runtime_checkable
class Event(Protocol):
    """A point in a stream of this process."""

    def query(self) -> bool:
        """Whether everything before the point is done.

        Raises:
            DeviceError: that work, or work before it, failed.
        """


class Stream(Protocol):
    """An in-order queue of work on a device."""

    @property
    def device_uuid(self) -> bytes:
        """Of its device, 16 bytes."""

    def close(self) -> None:
        """Gives back a stream of our own, after the work that is queued; returns at once.

        Idempotent. A borrowed stream is left alone.
        """


class Opened(Protocol):
    """Another process's allocation in this one. Reference-counted: opened once per device."""

    @property
    def base(self) -> int:
        """Its first byte here."""

    @property
    def num_bytes(self) -> int:
        """Its real length, as the device says and not the exporter."""

    def as_array(self) -> Any:
        """Its bytes as an array that speaks DLPack, uint8[num_bytes]."""

    def close(self) -> None:
        """Gives it back. Idempotent. May wait for the device: never on a thread with duties.

        Raises:
            DeviceError: it may still be open; only the end of this process closes it for sure.
        """


class Pinned(Protocol):
    """Host memory that the device may read (or write) directly."""

    @property
    def is_read_only(self) -> bool:
        """Whether the device was told never to write it."""

    def close(self) -> None:
        """Ends it; no copy from or to it may be under way. Idempotent."""


class PinnedBuffer(Protocol):
    """Page-locked host memory of our own."""

    @property
    def view(self) -> NDArray[np.uint8]:
        """uint8[num_bytes], writable."""

    @property
    def address(self) -> int:
        """Its first byte."""

    def close(self) -> None:
        """Frees it; no copy from or to it may be under way. Idempotent."""


class DeviceBuffer(Protocol):
    """Device memory of our own, one allocation (``MemoryKind.DEVICE``)."""

    @property
    def address(self) -> int:
        """Its first byte."""

    @property
    def num_bytes(self) -> int:
        """Its length."""

    def close(self) -> None:
        """Frees it. Idempotent. May wait for the device: never on a thread with duties."""


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of the whole device, not of this process alone.

    Attributes:
        free_bytes: that nobody has.
        total_bytes: of the device.
    """

    free_bytes: int
    total_bytes: int


class Device(Protocol):
    """One device, as one process uses it. Any thread may call it after ``bind``."""

    @property
    def uuid(self) -> bytes:
        """16 bytes."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def numa_node(self) -> int | None:
        """Node of the machine's memory that it hangs on; None where nobody knows. No binding."""

    def bind(self) -> None:
        """Makes the device's primary context the calling thread's (host contract rule 13)."""

    def place(self, address: int) -> Place | None:
        """What an address is; None when the device does not know it (plain host memory)."""

    # --- order ---

    def create_stream(self) -> Stream:
        """A stream of our own that no legacy stream holds up."""

    def borrow_stream(self, stream: object) -> Stream:
        """The engine's stream.

        Args:
            stream: a ``torch.cuda.Stream`` (anything with ``cuda_stream``), or a stream of the
                simulated device.
        """

    def record(self, stream: Stream) -> Event:
        """Marks the present end of a stream."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Makes work queued on a stream from now on wait for an event of this process."""

    # --- copies ---

    def copy(self, stream: Stream, batch: Batch, direction: Direction) -> None:
        """Queues copies; returns at once. They are done when an event recorded after it is.

        Args:
            stream: the copies come after everything queued on it.
            batch: host memory in it must be page-locked (``pin``, ``pinned_buffer``).
            direction: where all of it goes.

        Raises:
            DeviceError: it could not be queued, or not all of it. What was queued is behind the
                stream's present end all the same: an event recorded now tells when it is over, and
                until then the targets are not to be used again.
        """

    # --- sharing ---

    def export(self, address: int) -> Exported:
        """Makes the allocation that an address lies in openable by other processes.

        Raises:
            DeviceError: the memory cannot be shared by a handle.
        """

    def open(self, handle: bytes) -> Opened:
        """Opens another process's allocation.

        Args:
            handle: 64 bytes.

        Raises:
            DeviceError: no such allocation, its process is this one, or the devices cannot see
                each other's memory.
        """

    # --- host memory ---

    def pin(self, address: int, num_bytes: int) -> Pinned:
        """Page-locks host memory for reading by the device, read-only where it can.

        Takes long (fractions of a second per GiB) and holds up other work of the driver: small
        extents, one after the other, on a thread without duties (fault P18).

        Args:
            address: first byte, a multiple of the page size.
            num_bytes: a multiple of the page size.

        Raises:
            DeviceError: it cannot be page-locked.
        """

    def pinned_buffer(self, num_bytes: int) -> PinnedBuffer:
        """Page-locked host memory of our own. Takes as long as ``pin``.

        Raises:
            DeviceError: there is no such memory.
        """

    def pinned_over(self, address: int, num_bytes: int) -> Pinned:
        """As ``pin``, but for memory that the device also writes (a staging ring)."""

    # --- memory of the device ---

    def allocate(self, num_bytes: int) -> DeviceBuffer:
        """Device memory of our own. For probes and measurements; adapters and copiers take none.

        Raises:
            DeviceError: there is no such memory.
        """

    # --- counting ---

    def memory(self) -> DeviceMemory:
        """Of the device, now."""


def batch_of(copies: Sequence[tuple[int, int, int]]) -> Batch:
    """A batch from plain numbers.

    Args:
        copies: (target, source, size) of each.
    """
    columns = np.array(copies, dtype=np.int64).reshape(-1, 3)
    return Batch(*(np.ascontiguousarray(columns[:, column]) for column in range(3)))
