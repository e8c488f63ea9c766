"""The loader: the thread that fills pages while the engine goes on, and what it still owes.

Jobs run in order. Each waits until the engine's stream has passed the work queued before it, for
recycled pages may still be that work's (host contract rule 5), then copies, then checks. The
extents of a job are held from the moment it is taken in, so that a server that goes meanwhile
takes nothing away.

Must not know: the host's classes, sockets, layers. The executor's thread submits; one daemon
thread, begun with the first job, works.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Protocol

from adapter.copy import HeldLoad, LoadError
from adapter.saveentry import Mark
from protocol.errors import ErrorCode

LOGGER: Final = logging.getLogger("kvkeep")

STREAM_LIMIT_S: Final = 60.0
"""Longest wait for the engine's stream or for a load's bytes: far above any forward, and well
under the host's hang detector of 300 s (host contract rule 10)."""

_MAX_JOBS: Final = 1024
_FIRST_NAP_S: Final = 0.00005
_LONGEST_NAP_S: Final = 0.001


def pass_gate(
    gate: Mark | None,
    is_stopped: Callable[[], bool] | None = None,
    limit_s: float = STREAM_LIMIT_S,
) -> None:
    """Waits until the engine's stream has passed a point.

    Args:
        gate: the point; None when nothing runs.
        is_stopped: asked between looks, where the wait may be called off.
        limit_s: longest wait, seconds.

    Raises:
        LoadError: the stream failed, did not get there in time, or the wait was called off.
    """
    if gate is None:
        return
    end_s, nap_s = time.monotonic() + limit_s, _FIRST_NAP_S
    while True:
        try:
            if gate.query():
                return
        except Exception as error:  # whatever the device says, these pages may be in use
            raise LoadError(
                ErrorCode.COPY_FAILED, f"the engine's stream failed: {error!r}"
            ) from error
        if is_stopped is not None and is_stopped():
            raise LoadError(ErrorCode.UNAVAILABLE, "the engine ends, the load was stopped")
        if time.monotonic() > end_s:
            raise LoadError(
                ErrorCode.DEADLINE_EXCEEDED, f"the engine's stream stood still for {limit_s:g} s"
            )
        time.sleep(nap_s)
        nap_s = min(2 * nap_s, _LONGEST_NAP_S)


class Job(Protocol):
    """Work for the loader."""

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Does it, and says to whom it may concern how it went. Does not raise."""


class Loader:
    """One thread and its bounded queue."""

    def __init__(self, enter_device: Callable[[], None] = lambda: None) -> None:
        """Starts nothing.

        Args:
            enter_device: called first in the thread (host contract rule 13).
        """
        self._enter_device = enter_device
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> bool:
        """Takes a job in.

        Args:
            job: to be run after those before it.

        Returns:
            False when the queue is full or the loader was stopped: the caller keeps the job.
        """
        with self._lock:
            if self._stopping.is_set() or self._jobs.qsize() >= _MAX_JOBS:
                return False
            self._jobs.put(job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_work,
                    args=(self._jobs, self._stopping, self._enter_device),
                    name="kvkeep-loader",
                    daemon=True,
                )
                self._thread.start()
        return True

    def stop(self, timeout_s: float) -> None:
        """Fails what is not done and ends the thread. Idempotent.

        Args:
            timeout_s: longest wait for it.
        """
        with self._lock:
            thread = self._thread
            if not self._stopping.is_set():
                self._stopping.set()
                self._jobs.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)


def _work(
    jobs: queue.Queue[Job | None], stopping: threading.Event, enter_device: Callable[[], None]
) -> None:
    # No reference to the loader: one that is forgotten must be able to go.
    try:
        enter_device()
    except Exception as error:  # noqa: BLE001 - the first gate that needs the device says so
        del error
    while True:
        job = jobs.get()
        if job is None:
            return
        try:
            job.run(stopping.is_set)
        except Exception as error:  # noqa: BLE001 - one job must not take the others with it
            LOGGER.error("kvkeep: a load broke off untold: %r", error)
        del job  # its pages may be freed before the next one comes


@dataclass
class WholeLoad:
    """A load of whole pages in the background.

    Attributes:
        load: its extents held.
        holding: lets go of them.
        gate: a point behind all work that may still use the pages.
        done: told how it went, once nothing is held any more.
    """

    load: HeldLoad
    holding: ExitStack
    gate: Mark | None
    done: Callable[[LoadError | None], None]

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Fills the pages."""
        failure: LoadError | None = None
        try:
            with self.holding:
                pass_gate(self.gate, is_stopped)
                self.load.copy(is_stopped)
                self.load.check()
        except Exception as error:  # noqa: BLE001 - told to the engine's thread, which raises it
            failure = as_load_error(error)
        self.done(failure)


def as_load_error(error: Exception) -> LoadError:
    """Whatever broke a load, as what is raised at the host."""
    if isinstance(error, LoadError):
        return error
    return LoadError(ErrorCode.INTERNAL, f"a load failed: {error!r}")


def again(failure: LoadError) -> LoadError:
    """A failure that another thread met, to be raised in this one."""
    return LoadError(failure.code, failure.message, **failure.detail)


class Arrivals:
    """Which parked requests have their pages: ids announced by the host, loads by us.

    An id is reported once, when it was announced and no load of it runs; at once when there never
    was one. A failed load is never forgotten: its request must not run.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = threading.Lock()
        self._num_running: dict[int, int] = {}
        self._announced: dict[int, None] = {}
        self._failure: LoadError | None = None

    @property
    def num_running(self) -> int:
        """Loads that were begun and have not ended."""
        with self._lock:
            return sum(self._num_running.values())

    def begin(self, request_id: int) -> None:
        """A load for a request begins."""
        with self._lock:
            self._num_running[request_id] = self._num_running.get(request_id, 0) + 1

    def end(self, request_id: int, failure: LoadError | None) -> None:
        """A load ended, well if there is no failure. Any thread."""
        with self._lock:
            left = self._num_running[request_id] - 1
            if left:
                self._num_running[request_id] = left
            else:
                del self._num_running[request_id]
            self._failure = self._failure or failure

    def check(self) -> None:
        """Raises a load's failure.

        Raises:
            LoadError: some load failed, now or earlier.
        """
        with self._lock:
            failure = self._failure
        if failure is not None:
            raise again(failure)

    def take(self, announced: Iterable[int]) -> list[int]:
        """Ends an iteration.

        Args:
            announced: ids that the host parks from now on.

        Returns:
            Announced ids whose pages are filled, each once.

        Raises:
            LoadError: some load failed.
        """
        self._announced.update(dict.fromkeys(announced))
        # One look at both: a load that fails between two looks would count as one that ended.
        with self._lock:
            failure = self._failure
            arrived = [number for number in self._announced if number not in self._num_running]
        if failure is not None:
            raise again(failure)
        for number in arrived:
            del self._announced[number]
        return arrived
