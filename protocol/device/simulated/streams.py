"""Streams and events of a simulated device, with the order rules of CUDA's and random delays.

A stream is a queue that a thread of its own drains. Names follow ``torch.cuda.Stream`` and
``torch.cuda.Event``, so that the conformance host can use them as the engine's streams; ``enqueue``
is a kernel launch. An event never recorded is done; recording again replaces the point waited for;
a wait takes the record as it was made before the call. After an error all later work of the stream
is left out, and whoever asks is told; points are still reached, so that nothing hangs.

Must not know: pages, what work does. Any thread may queue.
"""

from __future__ import annotations

import itertools
import queue
import threading
import weakref
from collections.abc import Callable
from typing import NoReturn, Protocol

from protocol.device.interface import DeviceError

_NAP_S = 0.05
_numbers = itertools.count(0x5000)
_by_number: weakref.WeakValueDictionary[int, SimulatedStream] = weakref.WeakValueDictionary()


class Owner(Protocol):
    """What a stream asks of its device."""

    @property
    def uuid(self) -> bytes:
        """16 bytes."""

    @property
    def lost(self) -> DeviceError | None:
        """Why nothing works on it any more."""

    def lose(self, error: DeviceError) -> None:
        """Notes an error after which nothing works any more."""

    def pause(self) -> None:
        """Waits for a random time, on the stream's thread."""

    def meet(self, call: str) -> None:
        """Lets a call fail or hang as planted."""


class _Mark:
    """One recording of an event: reached once, with the error of the work before it."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.reached = threading.Event()
        self.error: BaseException | None = None

    def query(self) -> bool:
        self.owner.meet("query")
        lost = self.owner.lost
        if lost is not None:
            _fail(lost)
        if not self.reached.is_set():
            return False
        if self.error is not None:
            _fail(self.error)
        return True


class SimulatedEvent:
    """A point in a stream of this process."""

    def __init__(self) -> None:
        """Makes an event that was never recorded."""
        self._mark: _Mark | None = None

    def record(self, stream: SimulatedStream) -> None:
        """Marks the present end of a stream; recording again moves the point."""
        stream.record_event(self)

    def wait(self, stream: SimulatedStream) -> None:
        """Makes work queued on a stream from now on wait for the point as it is marked now."""
        stream.wait_event(self)

    def query(self) -> bool:
        """Whether everything before the point is done.

        Raises:
            DeviceError: that work, or work before it, failed.
        """
        mark = self._mark
        return True if mark is None else mark.query()

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Waits for the point. For tests and the host; nothing of kvkeep calls it.

        Raises:
            DeviceError: as ``query``.
            TimeoutError: it was not reached in time.
        """
        mark = self._mark
        if mark is None:
            return
        if not mark.reached.wait(timeout_s):
            raise TimeoutError(f"event not reached within {timeout_s} s")
        mark.query()

    def __reduce__(self) -> NoReturn:
        """Events stay in their process."""
        raise TypeError("an event means nothing in another process")


class SimulatedStream:
    """An in-order queue of work on a simulated device.

    Args:
        owner: its device.
        name: the thread's name.
    """

    def __init__(self, owner: Owner, name: str) -> None:
        self.name = name
        self.owner = owner
        self.cuda_stream = next(_numbers)
        self._queue = _Queue(owner)
        self._thread = threading.Thread(target=self._queue.run, name=f"stream-{name}", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._queue.end)
        _by_number[self.cuda_stream] = self

    @property
    def device_uuid(self) -> bytes:
        """Of its device, 16 bytes."""
        return self.owner.uuid

    def enqueue(self, work: Callable[[], object]) -> None:
        """Queues work; returns at once. The work must not call the device."""
        items = self._queue  # not self: a queue with work must not keep its stream alive
        items.put(lambda: items.guarded(work))

    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        """Marks the present end of the queue.

        Args:
            event: to record (again); None for a new one.
        """
        event = SimulatedEvent() if event is None else event
        mark = _Mark(self.owner)
        event._mark = mark
        items = self._queue
        items.put(lambda: items.reach(mark))
        return event

    def wait_event(self, event: SimulatedEvent) -> None:
        """Makes work queued from now on wait for the point that ``event`` marks now."""
        mark = event._mark
        if mark is not None:
            items = self._queue
            items.put(lambda: items.wait_for(mark))

    def wait_stream(self, stream: SimulatedStream) -> None:
        """Makes work queued from now on wait for what ``stream`` has queued now."""
        self.wait_event(stream.record_event())

    def query(self) -> bool:
        """Whether everything queued before is done.

        Raises:
            DeviceError: some of it failed.
        """
        self.owner.meet("query")
        error = self._queue.error or self.owner.lost
        if error is not None:
            _fail(error)
        return self._queue.is_drained()

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Waits for everything queued before. For tests and the host; nothing of kvkeep calls it.

        Raises:
            DeviceError: some of it failed.
            TimeoutError: it was not done in time.
        """
        self.record_event().synchronize(timeout_s)

    def close(self, timeout_s: float = 0.0) -> None:
        """Ends the thread after the work that is queued. Idempotent.

        Args:
            timeout_s: how long to wait for that; 0 not at all.
        """
        self._end()
        if timeout_s and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)


class BorrowedStream:
    """A stream of the engine in our hands.

    Args:
        stream: the engine's.
    """

    def __init__(self, stream: SimulatedStream) -> None:
        self.stream = stream

    @property
    def device_uuid(self) -> bytes:
        """Of its device, 16 bytes."""
        return self.stream.device_uuid

    def close(self) -> None:
        """Leaves it alone."""


def stream_by_number(number: int) -> SimulatedStream | None:
    """A living stream by its ``cuda_stream``."""
    return _by_number.get(number)


class _Queue:
    """The part of a stream that its thread holds, so that a forgotten stream ends."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._items: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a stream that is forgotten ends anywhere
        self._num_queued = 0
        self._num_done = 0
        self._is_ended = False
        self.error: BaseException | None = None

    def put(self, item: Callable[[], None]) -> None:
        with self._lock:
            if self._is_ended:
                raise DeviceError("cudaErrorInvalidResourceHandle", "simulated stream that ended")
            self._num_queued += 1
            self._items.put(item)

    def end(self) -> None:
        with self._lock:
            self._is_ended = True
            self._items.put(None)

    def is_drained(self) -> bool:
        return self._num_done == self._num_queued

    def run(self) -> None:
        while (item := self._items.get()) is not None:
            if self.error is None and self._owner.lost is None:
                self._owner.pause()
            item()
            item = None  # what it holds goes now, not with the next piece of work
            self._num_done += 1

    def guarded(self, work: Callable[[], object]) -> None:
        if self.error is not None or self._owner.lost is not None:
            return
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - kept and raised at whoever asks
            self.error = error
            if isinstance(error, DeviceError) and error.is_sticky:
                self._owner.lose(error)

    def reach(self, mark: _Mark) -> None:
        mark.error = self.error or self._owner.lost
        mark.reached.set()

    def wait_for(self, mark: _Mark) -> None:
        while not mark.reached.wait(_NAP_S):
            if self._owner.lost is not None or mark.owner.lost is not None:
                return
        if mark.error is not None and self.error is None:
            self.error = mark.error


def _fail(error: BaseException) -> NoReturn:
    if isinstance(error, DeviceError):
        raise DeviceError(error.code, "simulated work before", error.is_sticky) from error
    raise DeviceError("cudaErrorLaunchFailure", f"simulated work: {error!r}") from error
