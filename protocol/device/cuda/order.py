"""Streams and events of CUDA, made once and used again.

An event is used again only when nobody holds it and it is done, so that whoever still holds one
sees no later record of it (fault P05). That it was dropped is known by its end in Python; whether
it is done is asked before it is used again.

Must not know: copies, memory. Any thread that has bound the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from protocol.device.cuda.driver import Driver
from protocol.device.interface import DeviceError

LEGACY_HANDLES = (0, 1)
"""The legacy stream by its two names (NULL, CU_STREAM_LEGACY)."""

_MAX_IDLE = 1024
"""Events kept for later; what is dropped beyond stays with the driver until the process ends."""

_NO_CONTEXT = "cudaErrorDeviceUninitialized"


class CudaEvent:
    """A point in a stream.

    Args:
        driver: of this process.
        bind: makes the device the calling thread's.
        handle: the driver's, recorded.
        idle: takes the handle when nobody holds the event any more.
    """

    __slots__ = ("_bind", "_driver", "_handle", "_idle", "_is_done")

    def __init__(
        self, driver: Driver, bind: Callable[[], None], handle: Any, idle: deque[Any]
    ) -> None:
        self._driver = driver
        self._bind = bind
        self._handle = handle
        self._idle = idle
        self._is_done = False

    @property
    def handle(self) -> Any:
        """The driver's."""
        return self._handle

    def query(self) -> bool:
        """Whether everything before the point is done. On any thread."""
        if not self._is_done:
            try:
                self._is_done = self._driver.is_done(self._handle)
            except DeviceError as error:
                if error.code != _NO_CONTEXT:
                    raise
                # A thread with no device at all so far: it may well have this one.
                self._bind()
                self._is_done = self._driver.is_done(self._handle)
        return self._is_done

    def __del__(self) -> None:
        # One step of the interpreter, whatever thread the end comes to; no call of the driver.
        self._idle.append(self._handle)


class CudaStream:
    """A stream.

    Args:
        handle: the driver's.
        device_uuid: of its device.
        is_legacy: it is the stream that waits for all others that do not opt out.
        idle: takes the handle at the end; None for a stream of somebody else.
    """

    def __init__(
        self, handle: Any, device_uuid: bytes, is_legacy: bool, idle: deque[Any] | None
    ) -> None:
        self.handle = handle
        self.is_legacy = is_legacy
        self._device_uuid = device_uuid
        self._idle = idle

    @property
    def device_uuid(self) -> bytes:
        """Of its device, 16 bytes."""
        return self._device_uuid

    def close(self) -> None:
        """Gives back a stream of our own, after the work that is queued."""
        idle, self._idle = self._idle, None
        if idle is not None:
            # Whoever gets it next queues behind what is still on it: late perhaps, never wrong.
            idle.append(self.handle)

    def __del__(self) -> None:
        self.close()


class Order:
    """The streams and events of one device.

    Args:
        driver: of this process.
        device_uuid: 16 bytes.
        bind: makes the device the calling thread's.
    """

    def __init__(self, driver: Driver, device_uuid: bytes, bind: Callable[[], None]) -> None:
        self._driver = driver
        self._bind = bind
        self._uuid = device_uuid
        self._idle_events: deque[Any] = deque(maxlen=_MAX_IDLE)
        self._idle_streams: deque[Any] = deque()
        self._owed: dict[CudaStream, None] = {}

    def create_stream(self) -> CudaStream:
        """A stream of our own that no legacy stream holds up."""
        try:
            handle = self._idle_streams.popleft()
        except IndexError:
            handle = self._driver.create_stream()
        return CudaStream(handle, self._uuid, False, self._idle_streams)

    def borrow_stream(self, stream: object) -> CudaStream:
        """Somebody else's stream; anything with its number as ``cuda_stream``."""
        number = getattr(stream, "cuda_stream", None)
        if not isinstance(number, int):
            raise DeviceError("cudaErrorInvalidResourceHandle", f"a stream of {type(stream)}")
        handle = self._driver.stream(number)
        return CudaStream(handle, self._uuid, number in LEGACY_HANDLES, None)

    def record(self, stream: CudaStream) -> CudaEvent:
        """Marks the present end of a stream, with what it should follow and could not be told to.

        Raises:
            DeviceError: it cannot be marked, or what it should follow would not be covered.
        """
        if self._owed and stream.is_legacy:
            for other in tuple(self._owed):
                self.follow(stream, other)
        handle = self._take_event()
        try:
            self._driver.record(handle, stream.handle)
        except DeviceError:
            self._idle_events.append(handle)
            raise
        return CudaEvent(self._driver, self._bind, handle, self._idle_events)

    def wait(self, stream: CudaStream, event: CudaEvent) -> None:
        """Makes later work of a stream wait for an event."""
        self._driver.wait(stream.handle, event.handle)

    def follow(self, stream: CudaStream, other: CudaStream) -> None:
        """Makes later work of the legacy stream wait for all that is queued on one of ours.

        Where that fails, each ``record`` of the legacy stream tries it again before anything else
        and raises as long as it fails: no event may seem to cover what it does not (memory would
        be let go under a copy).

        Args:
            stream: the legacy stream, by either name.
            other: ours.
        """
        self._owed[other] = None
        self.wait(stream, self.record(other))
        self._owed.pop(other, None)

    def _take_event(self) -> Any:
        """A handle that is done and that nobody holds."""
        try:
            handle = self._idle_events.popleft()
        except IndexError:
            return self._driver.create_event()
        try:
            if self._driver.is_done(handle):
                return handle
        except DeviceError:
            self._idle_events.append(handle)
            raise
        self._idle_events.append(handle)
        return self._driver.create_event()
