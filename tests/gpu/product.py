"""Matrix products in a row on a stream of their own, to see what copies cost others.

A thread keeps the stream fed and counts what it has done; it takes little of the interpreter.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from tests.gpu.ground import Ground

AHEAD = 24
"""Products queued at any time: more than are done between two looks."""


class Products:
    """A stream that multiplies from ``start`` to ``stop``."""

    def __init__(self, ground: Ground) -> None:
        """Queues one product, so that its kernel is compiled."""
        self._ground = ground
        self._stream = ground.stream()
        self._marks: deque[Any] = deque()
        self._num_done = 0
        self._is_ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._queue()
        while self._look():
            time.sleep(0.001)  # a pace, not a wait: the loop ends by its condition

    def _queue(self) -> None:
        self._ground.multiply(self._stream)
        self._marks.append(self._stream.record_event())

    def _look(self) -> int:
        """Drops what is done; how many are not."""
        while self._marks and self._marks[0].query():
            self._marks.popleft()
            self._num_done += 1
        return len(self._marks)

    def _run(self) -> None:
        try:
            self._ground.device.bind()
            while not self._is_ending.is_set():
                for _ in range(AHEAD - self._look()):
                    self._queue()
                time.sleep(0.0005)  # a pace: the stream has work for longer
        except BaseException as error:  # noqa: BLE001 - raised by ``stop``
            self._error = error

    def start(self) -> None:
        """Begins to multiply."""
        self._is_ending.clear()
        self._thread = threading.Thread(target=self._run, name="products", daemon=True)
        self._thread.start()

    def rate(self, during_s: float) -> float:
        """Products per second for a while."""
        before, begun_s = self._num_done, time.perf_counter()
        time.sleep(during_s)  # the time that is measured
        return (self._num_done - before) / (time.perf_counter() - begun_s)

    def count(self) -> tuple[int, float]:
        """Products done so far, and when that was looked at."""
        return self._num_done, time.perf_counter()

    def stop(self) -> None:
        """Ends; waits for the thread and for what is queued."""
        self._is_ending.set()
        if self._thread is not None:
            self._thread.join(10.0)
        if self._error is not None:
            raise self._error
        while self._look():
            time.sleep(0.001)  # a pace, not a wait: the loop ends by its condition
