"""Streams and events with the order rules of CUDA's, run by host threads.

A ``HostStream`` is a FIFO drained by one daemon thread of its own, so work on it
really is asynchronous to whoever queued it. Method names follow
``torch.cuda.Stream`` and ``torch.cuda.Event``; ``enqueue`` is the host's kernel
launch. An error in queued work is sticky: later work on that stream is skipped
and every wait for it raises, while events still complete so that nothing hangs.

Must not know: pages, requests, torch. Any thread may queue.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from adapter.conformance.host.errors import StreamError


class _Mark:
    """One recording of an event: reached once, with the stream's error if any."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.error: BaseException | None = None


class HostEvent:
    """A point in a stream, as ``torch.cuda.Event``.

    An event never recorded counts as complete, and recording again replaces the
    point waited for; both as on a GPU (fault P05 lives from it).
    """

    def __init__(self) -> None:
        """Make an event that was never recorded."""
        self._mark: _Mark | None = None

    def record(self, stream: HostStream) -> None:
        """Mark the work queued on ``stream`` so far."""
        stream.record_event(self)

    def wait(self, stream: HostStream) -> None:
        """Make later work on ``stream`` wait for the marked point."""
        stream.wait_event(self)

    def query(self) -> bool:
        """Whether the marked work is done.

        Raises:
            StreamError: If that work, or work before it, raised.
        """
        mark = self._mark
        if mark is None:
            return True
        if not mark.reached.is_set():
            return False
        _raise_if_failed(mark)
        return True

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Block the calling thread until the marked work is done.

        Args:
            timeout_s: Longest wait in seconds; None waits without limit.

        Raises:
            StreamError: If that work, or work before it, raised.
            TimeoutError: If the limit passed first.
        """
        mark = self._mark
        if mark is None:
            return
        if not mark.reached.wait(timeout_s):
            raise TimeoutError(f"event not reached within {timeout_s} s")
        _raise_if_failed(mark)

    def _capture(self) -> _Mark | None:
        return self._mark

    def _replace(self, mark: _Mark) -> None:
        self._mark = mark


def _raise_if_failed(mark: _Mark) -> None:
    if mark.error is not None:
        raise StreamError(f"work on a stream failed: {mark.error!r}") from mark.error


class HostStream:
    """An in-order queue of work, as ``torch.cuda.Stream``.

    Args:
        name: Shown as the thread's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._items: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._num_queued = 0
        self._num_done = 0
        self._count_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"stream-{name}", daemon=True)
        self._thread.start()

    def enqueue(self, work: Callable[[], object]) -> None:
        """Queue ``work`` behind everything queued before; returns at once."""
        self._put(lambda: self._guarded(work))

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """Mark the present end of the queue.

        Args:
            event: The event to (re-)record, or None for a new one.

        Returns:
            The recorded event.
        """
        event = HostEvent() if event is None else event
        mark = _Mark()
        event._replace(mark)
        self._put(lambda: self._reach(mark))
        return event

    def wait_event(self, event: HostEvent) -> None:
        """Make work queued later wait for the point ``event`` marks now."""
        mark = event._capture()
        if mark is not None:
            self._put(lambda: self._await(mark))

    def wait_stream(self, stream: HostStream) -> None:
        """Make work queued later wait for what ``stream`` has queued now."""
        self.wait_event(stream.record_event())

    def query(self) -> bool:
        """Whether everything queued before this call is done.

        Raises:
            StreamError: If some of it raised.
        """
        if self._error is not None:
            raise StreamError(f"stream {self.name} failed: {self._error!r}") from self._error
        return self._num_done == self._num_queued

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Block until everything queued before this call is done.

        Args:
            timeout_s: Longest wait in seconds; None waits without limit.

        Raises:
            StreamError: If some of it raised.
            TimeoutError: If the limit passed first.
        """
        self.record_event().synchronize(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Let queued work end and stop the thread; later work would never run.

        Args:
            timeout_s: Longest wait for the thread in seconds.
        """
        self._items.put(None)
        self._thread.join(timeout_s)

    def _put(self, item: Callable[[], None]) -> None:
        with self._count_lock:
            self._num_queued += 1
            self._items.put(item)

    def _run(self) -> None:
        while True:
            item = self._items.get()
            if item is None:
                return
            item()
            self._num_done += 1

    def _guarded(self, work: Callable[[], object]) -> None:
        if self._error is not None:
            return
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - kept and raised at whoever waits
            self._error = error

    def _reach(self, mark: _Mark) -> None:
        mark.error = self._error
        mark.reached.set()

    def _await(self, mark: _Mark) -> None:
        mark.reached.wait()
        if mark.error is not None and self._error is None:
            self._error = mark.error
