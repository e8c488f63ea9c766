"""CUDA as the device seam sees it (``protocol.device.interface.Device``), and finding devices.

Must not know: pages, slots, requests, sockets. Any thread that has bound the device; finding one
needs no binding and makes no context.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from protocol.device.cuda import nvml
from protocol.device.cuda.copies import Copies, Kernel
from protocol.device.cuda.driver import (
    DEVICE_MEMORY,
    HOST_MEMORY,
    Driver,
    PointerFacts,
    load_driver,
)
from protocol.device.cuda.kernel import GatherKernel
from protocol.device.cuda.locked import Locked
from protocol.device.cuda.memory import (
    CudaBuffer,
    CudaOpened,
    CudaPinned,
    CudaPinnedBuffer,
    Openings,
    lock,
)
from protocol.device.cuda.order import CudaEvent, CudaStream, Order
from protocol.device.interface import (
    Batch,
    DeviceError,
    DeviceMemory,
    Direction,
    Exported,
    MemoryKind,
    Place,
)
from protocol.device.numa import node_of


class CudaDevice:
    """One GPU, or one instance of a GPU, as this process uses it.

    Args:
        driver: of this process.
        ordinal: its number in this process.
    """

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self._driver = driver
        self.ordinal = ordinal
        self._handle = driver.device(ordinal)
        self.uuid = driver.uuid(self._handle)
        self.name = driver.name(self._handle)
        self.numa_node = self._find_node()
        self._binding = threading.Lock()
        self._context: Any = None
        self._order = Order(driver, self.uuid, self.bind)
        self._openings = Openings(driver, self.within, ordinal)
        self._locked = Locked()
        has_host_addresses = bool(
            driver.attribute(self._handle, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM")
        )
        self.kernel: Kernel = self._make_kernel() if has_host_addresses else _NoKernel()
        self.copies = Copies(driver, self._order, self.kernel, self._locked, has_host_addresses)
        self._has_read_only = bool(
            driver.attribute(self._handle, "READ_ONLY_HOST_REGISTER_SUPPORTED")
        )

    def _find_node(self) -> int | None:
        try:
            return node_of(self._driver.pci_bus_id(self._handle))
        except DeviceError:  # no device on a bus of this machine
            return None

    def _make_kernel(self) -> Kernel:
        attribute = functools.partial(self._driver.attribute, self._handle)
        major = attribute("COMPUTE_CAPABILITY_MAJOR")
        minor = attribute("COMPUTE_CAPABILITY_MINOR")
        return GatherKernel(self._driver, major * 10 + minor, self.bind)

    def bind(self) -> None:
        """Makes the device's primary context the calling thread's."""
        self._driver.set_context(self._retain())

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Makes it the calling thread's for a while, and then what it had before."""
        self._driver.enter(self._retain())
        try:
            yield
        finally:
            self._driver.leave()

    def _retain(self) -> Any:
        if self._context is None:
            with self._binding:
                if self._context is None:
                    self._context = self._driver.retain_context(self._handle)
        return self._context

    def place(self, address: int) -> Place | None:
        """What an address is; None for plain host memory."""
        facts = self._driver.pointer(address)
        kind = kind_of(facts)
        if kind is None:
            return None
        uuid = b""
        if kind is not MemoryKind.HOST:
            is_here = facts.ordinal == self.ordinal
            uuid = self.uuid if is_here else self._driver.uuid(self._driver.device(facts.ordinal))
        return Place(kind, uuid, facts.base, facts.num_bytes)

    # --- order ---

    def create_stream(self) -> CudaStream:
        """A stream of our own that no legacy stream holds up."""
        return self._order.create_stream()

    def borrow_stream(self, stream: object) -> CudaStream:
        """The engine's stream."""
        return self._order.borrow_stream(stream)

    def record(self, stream: CudaStream) -> CudaEvent:
        """Marks the present end of a stream."""
        return self._order.record(stream)

    def wait(self, stream: CudaStream, event: CudaEvent) -> None:
        """Makes work queued on a stream from now on wait for an event of this process."""
        self._order.wait(stream, event)

    # --- copies ---

    def copy(self, stream: CudaStream, batch: Batch, direction: Direction) -> None:
        """Queues copies; see ``copies`` for which way they take."""
        self.copies.queue(stream, batch, direction)

    # --- sharing ---

    def export(self, address: int) -> Exported:
        """Makes the allocation that an address lies in openable by other processes."""
        place = self.place(address)
        if place is None or place.kind is not MemoryKind.DEVICE:
            kind = "plain host" if place is None else place.kind.value
            raise DeviceError("cudaErrorNotSupported", f"a handle of {kind} memory")
        base, num_bytes = self._driver.range_of(address)
        return Exported(self._driver.export(base), place.device_uuid, base, num_bytes)

    def open(self, handle: bytes) -> CudaOpened:
        """Opens another process's allocation."""
        return self._openings.open(handle)

    # --- host memory ---

    def pin(self, address: int, num_bytes: int) -> CudaPinned:
        """Page-locks host memory for reading by the device, read-only where it can."""
        return self._lock(address, num_bytes, self._has_read_only)

    def pinned_over(self, address: int, num_bytes: int) -> CudaPinned:
        """Page-locks host memory that the device also writes."""
        return self._lock(address, num_bytes, has_read_only=False)

    def _lock(self, address: int, num_bytes: int, has_read_only: bool) -> CudaPinned:
        return lock(self._driver, self.within, self._locked, address, num_bytes, has_read_only)

    def pinned_buffer(self, num_bytes: int) -> CudaPinnedBuffer:
        """Page-locked host memory of our own."""
        return CudaPinnedBuffer(self._driver, self.within, num_bytes)

    # --- memory of the device ---

    def allocate(self, num_bytes: int) -> CudaBuffer:
        """Device memory of our own."""
        return CudaBuffer(self._driver, self.within, num_bytes)

    # --- counting ---

    def memory(self) -> DeviceMemory:
        """Of the device, now. Makes a context only where NVML cannot say."""
        counted = nvml.device_memory(self.uuid)
        if counted is None:
            with self.within():
                counted = self._driver.memory()
        return DeviceMemory(*counted)


class _NoKernel:
    """On a device whose kernels cannot read host memory by the host's addresses."""

    def is_ready(self) -> bool:
        """Never."""
        return False

    def prepare(self) -> None:
        """Nothing."""

    def launch(self, batch: Batch, stream: CudaStream) -> None:
        """Not to be called."""
        raise DeviceError("cudaErrorNotSupported", "a kernel on this device")


def kind_of(facts: PointerFacts) -> MemoryKind | None:
    """What the driver's facts mean for sharing; None for memory it does not know."""
    if facts.is_managed:
        return MemoryKind.MANAGED
    if facts.type == HOST_MEMORY:
        return MemoryKind.HOST
    if facts.type != DEVICE_MEMORY:
        return None
    # Mapped pieces, and memory of the driver's own pools (cudaMallocAsync): no handle of the
    # kind that opens as a whole.
    return MemoryKind.DEVICE if facts.is_exportable else MemoryKind.VIRTUAL


def device_of(address: int) -> CudaDevice | None:
    """The device that memory belongs to; None for host memory.

    An engine asks, when it registers its pool: that is the time to have the kernel made, before
    requests are served. A copier asks by uuid and has none: without MPS a kernel of another
    process gets the whole GPU for a while (ADR 0013).

    Raises:
        DeviceError: CUDA cannot be used here.
    """
    facts = load_driver().pointer(address)
    if kind_of(facts) in (None, MemoryKind.HOST):
        return None
    device = visible_devices()[facts.ordinal]
    device.kernel.prepare()
    return device


def device_by_uuid(uuid: bytes) -> CudaDevice:
    """A device by its name.

    Args:
        uuid: 16 bytes.

    Raises:
        DeviceError: there is none of that name, or CUDA cannot be used here.
    """
    for device in visible_devices():
        if device.uuid == uuid:
            return device
    raise DeviceError("cudaErrorNoDevice", f"no GPU here has the uuid {uuid.hex()}")


_finding = threading.Lock()


def visible_devices() -> tuple[CudaDevice, ...]:
    """All devices that this process sees; the same objects each time.

    Raises:
        DeviceError: CUDA cannot be used here.
    """
    with _finding:
        return _found()


@functools.cache
def _found() -> tuple[CudaDevice, ...]:
    driver = load_driver()
    return tuple(CudaDevice(driver, ordinal) for ordinal in range(driver.count()))
