"""A simulated device as the device seam sees it (``protocol.device.interface.Device``).

Stricter than CUDA where CUDA lets a mistake pass: a thread must have bound the device, host memory
must be page-locked, ranges of a batch must not overlap.

Must not know: pages, slots, requests, sockets. Any thread that has bound it.
"""

from __future__ import annotations

import mmap
import random
import threading
import time
import weakref
from typing import TYPE_CHECKING

import numpy as np

from protocol.device.interface import (
    HANDLE_BYTES,
    Batch,
    DeviceError,
    DeviceMemory,
    Direction,
    Event,
    Exported,
    MemoryKind,
    Place,
    Stream,
)
from protocol.device.simulated import copies, ledger
from protocol.device.simulated.held import (
    SimulatedBuffer,
    SimulatedDeviceBuffer,
    SimulatedOpened,
    SimulatedPinned,
)
from protocol.device.simulated.memory import Range
from protocol.device.simulated.settings import uuid_of
from protocol.device.simulated.streams import (
    BorrowedStream,
    SimulatedEvent,
    SimulatedStream,
    stream_by_number,
)

if TYPE_CHECKING:
    from protocol.device.simulated.driver import Driver

_MAGIC = b"SIMULATED"
_GIB = 1 << 30
_NO_DELAY = 0.4
"""Share of the work that begins at once."""
_DELAYED_PIECES = 0.2
"""Share of the pieces of a batch before which the stream may pause."""


class SimulatedDevice:
    """One device of a driver.

    Args:
        driver: of this process.
        index: its number.
    """

    def __init__(self, driver: Driver, index: int) -> None:
        self._driver = driver
        self.index = index
        self.lost: DeviceError | None = None
        self._streams: weakref.WeakSet[SimulatedStream] = weakref.WeakSet()

    @property
    def uuid(self) -> bytes:
        """16 bytes."""
        return uuid_of(self.index)

    @property
    def name(self) -> str:
        """For people."""
        return f"simulated GPU {self.index}"

    @property
    def numa_node(self) -> int | None:
        """As set for the machine."""
        nodes = self._driver.settings.machine.numa_nodes
        return nodes[self.index] if self.index < len(nodes) else None

    def bind(self) -> None:
        """Makes the device the calling thread's."""
        self._driver.check_process()
        self.meet("bind")
        self._driver.enter(self.index)
        self._driver.bound.index = self.index
        self._driver.bound_threads.add(threading.current_thread().name)

    def place(self, address: int) -> Place | None:
        """What an address is; None for plain host memory."""
        found = self._driver.memory.find(address)
        if found is None:
            return None
        uuid = b"" if found.is_host else uuid_of(found.owner)
        return Place(found.kind, uuid, found.base, found.num_bytes)

    # --- order ---

    def create_stream(self, name: str = "") -> SimulatedStream:
        """A stream with a thread of its own.

        Args:
            name: the thread's, for people.
        """
        self._call("create_stream")
        made = SimulatedStream(
            _StreamOwner(self, self._driver.next_rng()), name or f"gpu{self.index}"
        )
        self._streams.add(made)
        return made

    def borrow_stream(self, stream: object) -> BorrowedStream:
        """The engine's stream: a simulated one, or anything with the ``cuda_stream`` of one."""
        if isinstance(stream, SimulatedStream):
            return BorrowedStream(stream)
        found = stream_by_number(getattr(stream, "cuda_stream", -1))
        if found is None:
            raise DeviceError("cudaErrorInvalidResourceHandle", f"simulated stream {stream!r}")
        return BorrowedStream(found)

    def record(self, stream: Stream) -> SimulatedEvent:
        """Marks the present end of a stream."""
        return self._on(stream, "record").record_event()

    def wait(self, stream: Stream, event: Event) -> None:
        """Makes work queued on a stream from now on wait for an event of this process."""
        if not isinstance(event, SimulatedEvent):
            raise DeviceError("cudaErrorInvalidResourceHandle", f"simulated wait for {event!r}")
        self._on(stream, "wait").wait_event(event)

    # --- copies ---

    def copy(self, stream: Stream, batch: Batch, direction: Direction) -> None:
        """Queues copies. See ``copies`` for what is refused."""
        queue = self._on(stream, "copy")
        accepted = copies.accept(batch, direction, self._driver.memory, self._sees)
        if accepted.sizes.size == 0:
            return
        memory, rng = self._driver.memory, self._driver.next_rng()
        queue.enqueue(lambda: copies.run(accepted, memory, rng, lambda: self._before_piece(rng)))

    # --- sharing ---

    def export(self, address: int) -> Exported:
        """Makes the allocation that an address lies in openable by other processes."""
        self._call("export")
        made = self._driver.allocation_at(address)
        if made is None or made.kind is not MemoryKind.DEVICE:
            kind = "no allocation of its own" if made is None else f"{made.kind.value} memory"
            raise DeviceError("cudaErrorInvalidValue", f"simulated export: {kind}")
        if made.device != self.index:
            raise DeviceError("cudaErrorInvalidDevice", "simulated export: another device's memory")
        handle = _MAGIC + b"%02d" % made.device + made.holding.token
        return Exported(handle.ljust(HANDLE_BYTES, b"\0"), self.uuid, made.address, made.num_bytes)

    def open(self, handle: bytes) -> SimulatedOpened:
        """Opens another process's allocation."""
        self._call("open")
        begin = len(_MAGIC)
        number, token = handle[begin : begin + 2], handle[begin + 2 :][: ledger.TOKEN_BYTES]
        if len(handle) != HANDLE_BYTES or handle[:begin] != _MAGIC or not number.isdigit():
            raise DeviceError("cudaErrorInvalidResourceHandle", "simulated open")
        owner = int(number)
        if (self.index, owner) in self._driver.settings.machine.refused_peers:
            raise DeviceError("cudaErrorPeerAccessUnsupported", "simulated open")
        return SimulatedOpened(self, self._driver.open(owner, token, self.index), token)

    def close_opened(self, token: bytes) -> None:
        """For ``SimulatedOpened.close``."""
        try:
            self.meet("close")
        except DeviceError:
            if self.lost is not None:  # its process loses all of it; the address range goes
                self._driver.close_opened(token, self.index)
            raise
        self._driver.close_opened(token, self.index)

    # --- host memory ---

    def pin(self, address: int, num_bytes: int) -> SimulatedPinned:
        """Page-locks host memory for reading by the device."""
        is_read_only = self._driver.settings.machine.has_read_only_pins
        return self._pin(address, num_bytes, is_writable=not is_read_only)

    def pinned_over(self, address: int, num_bytes: int) -> SimulatedPinned:
        """Page-locks host memory that the device also writes."""
        return self._pin(address, num_bytes, is_writable=True)

    def pinned_buffer(self, num_bytes: int) -> SimulatedBuffer:
        """Page-locked host memory of our own."""
        self._call("pinned_buffer")
        view = np.frombuffer(mmap.mmap(-1, num_bytes), dtype=np.uint8)
        place = Range(int(view.ctypes.data), num_bytes, MemoryKind.HOST, content=view)
        self._driver.memory.add(place)
        return SimulatedBuffer(self, place, view)

    def _pin(self, address: int, num_bytes: int, is_writable: bool) -> SimulatedPinned:
        self._call("pin")
        if address % mmap.PAGESIZE or num_bytes % mmap.PAGESIZE or num_bytes <= 0:
            raise DeviceError("cudaErrorInvalidValue", "simulated pin of part of a page")
        time.sleep(self._driver.settings.machine.pin_s_per_gib * num_bytes / _GIB)
        place = Range(address, num_bytes, MemoryKind.HOST, is_writable=is_writable)
        self._driver.memory.add(place)
        return SimulatedPinned(self, place)

    def forget(self, place: Range) -> None:
        """For the ends of pins and buffers."""
        try:
            self.meet("unpin")
        except DeviceError:
            if self.lost is not None:  # a lost device touches nothing any more
                self._driver.memory.remove(place)
            raise
        self._driver.memory.remove(place)

    # --- memory of the device ---

    def malloc(self, num_bytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """Makes memory of a kind, zeros; for the conformance host, which plays the engine.

        Binds the thread, as the host's own allocation does.

        Args:
            num_bytes: positive.
            kind: ``DEVICE`` as cudaMalloc makes it, ``VIRTUAL`` or ``MANAGED``.

        Returns:
            its first address; the memory stays until ``free``.

        Raises:
            DeviceError: not so much is free.
        """
        self.bind()
        self.meet("malloc")
        if num_bytes > self.memory().free_bytes:
            raise DeviceError("cudaErrorMemoryAllocation", f"simulated malloc of {num_bytes} bytes")
        return self._driver.allocate(num_bytes, self.index, kind).address

    def free(self, address: int) -> None:
        """Frees memory by its first address; it is poisoned for all who have it open."""
        made = self._driver.allocation_at(address)
        if made is not None:
            made.free()

    def allocate(self, num_bytes: int) -> SimulatedDeviceBuffer:
        """Device memory of our own."""
        self._call("allocate")
        return SimulatedDeviceBuffer(self, self.malloc(num_bytes), num_bytes)

    # --- counting ---

    def memory(self) -> DeviceMemory:
        """Of the device, now: all processes' allocations and contexts. Needs no binding."""
        self.meet("memory")
        machine = self._driver.settings.machine
        taken = ledger.census(self._driver.folder, self.index)
        used = taken.memory_bytes + taken.freed_bytes + taken.num_contexts * machine.context_bytes
        return DeviceMemory(max(0, machine.total_bytes - used), machine.total_bytes)

    # --- for streams and faults ---

    def meet(self, call: str) -> None:
        """Lets a call fail or hang as planted.

        Raises:
            DeviceError: as planted, or the device is lost.
        """
        if self.lost is not None:
            raise DeviceError(self.lost.code, f"simulated {call} on a lost device", True)
        try:
            self._driver.faults.meet(call, self.index)
        except DeviceError as error:
            if error.is_sticky:
                self.lose(error)
            raise

    def lose(self, error: DeviceError) -> None:
        """Makes every later call of this process on the device fail."""
        self.lost = self.lost or error

    def pause(self, rng: random.Random) -> None:
        """Waits for a random time up to the longest delay; often not at all."""
        delay_us = self._driver.settings.delay_us
        chance = rng.random()
        if delay_us and chance > _NO_DELAY:
            time.sleep(delay_us * (chance - _NO_DELAY) / (1 - _NO_DELAY) / 1e6)

    def end(self) -> None:
        """Ends all streams. For the end of the driver."""
        for stream in list(self._streams):
            stream.close()

    def _before_piece(self, rng: random.Random) -> None:
        self.meet("run")
        if rng.random() < _DELAYED_PIECES:
            self.pause(rng)

    def _on(self, stream: Stream, call: str) -> SimulatedStream:
        queue = stream.stream if isinstance(stream, BorrowedStream) else stream
        if not isinstance(queue, SimulatedStream) or queue.device_uuid != self.uuid:
            code = "cudaErrorInvalidResourceHandle"
            raise DeviceError(code, f"simulated {call} on another device's stream")
        self._call(call)
        return queue

    def _call(self, call: str) -> None:
        self._driver.check_process()
        if getattr(self._driver.bound, "index", None) != self.index:
            code, what = (
                "cudaErrorInvalidDevice",
                f"{call} on a thread that has not bound {self.name}",
            )
            self._driver.unbound_calls.append(f"{what}: {threading.current_thread().name}")
            raise DeviceError(code, f"simulated {what}")
        self.meet(call)

    def _sees(self, place: Range) -> bool:
        if self.index in (place.seen_by, place.owner):
            return True
        return (self.index, place.owner) not in self._driver.settings.machine.refused_peers


class _StreamOwner:
    """A device as its streams see it; holds the device, so that no stream outlives it."""

    def __init__(self, device: SimulatedDevice, rng: random.Random) -> None:
        self._device = device
        self._rng = rng
        self.uuid = device.uuid

    @property
    def lost(self) -> DeviceError | None:
        return self._device.lost

    def lose(self, error: DeviceError) -> None:
        self._device.lose(error)

    def pause(self) -> None:
        self._device.pause(self._rng)

    def meet(self, call: str) -> None:
        self._device.meet(call)
