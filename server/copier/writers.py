"""Threads that carry pieces from the bounce buffer into the arena.

Purpose: a link to a device brings more than one core can write, and numpy copies without the GIL.
Must not know: devices, events, jobs; whose bytes they are. Runs in: threads of a device copier,
given work and collected from by its main thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from server.copier.wake import Wake

Token = TypeVar("Token")
_NAP_S = 0.001


@dataclass(frozen=True)
class Written(Generic[Token]):
    """A piece of work that has ended: nothing reads its source or writes its target any more.

    Attributes:
        token: as submitted.
        error: why it failed, or None.
    """

    token: Token
    error: str | None


@dataclass(frozen=True)
class _Work(Generic[Token]):
    token: Token
    source: NDArray[np.uint8]
    target: NDArray[np.uint8]
    runs: list[tuple[int, int, int]]


class Writers(Generic[Token]):
    """A fixed number of threads.

    Args:
        num_threads: at least one.
        wake: set after each piece of work.
    """

    def __init__(self, num_threads: int, wake: Wake) -> None:
        self._wake = wake
        self._todo: SimpleQueue[_Work[Token] | None] = SimpleQueue()
        self._done: deque[Written[Token]] = deque()
        self._num_open = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"kvkeep-writer-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        token: Token,
        source: NDArray[np.uint8],
        target: NDArray[np.uint8],
        runs: list[tuple[int, int, int]],
    ) -> None:
        """Has bytes copied.

        Args:
            token: comes back with ``collect``.
            source: uint8[n], left alone until then.
            target: uint8[m], of which only the runs are written.
            runs: (offset in the source, offset in the target, length in bytes), within both.
        """
        self._num_open += 1
        self._todo.put(_Work(token, source, target, runs))

    def collect(self) -> list[Written[Token]]:
        """What has ended since the last call."""
        ended = []
        while self._done:
            ended.append(self._done.popleft())
        self._num_open -= len(ended)
        return ended

    def settle(self, timeout_s: float) -> bool:
        """Waits until all work has ended.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether it has; it can be collected then.
        """
        deadline_s = time.monotonic() + timeout_s
        while len(self._done) < self._num_open:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_NAP_S)
        return True

    def stop(self) -> None:
        """Ends the threads after their work; does not wait."""
        for _ in self._threads:
            self._todo.put(None)

    def _run(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """Does one piece of work.

        In a frame of its own: what a waiting thread still named would stay mapped, and an extent
        that was unmapped and unlinked would keep its memory.

        Returns:
            Whether there will be more.
        """
        work = self._todo.get()
        if work is None:
            return False
        error = None
        try:
            copy, source, target = np.copyto, work.source, work.target
            for start, at, size in work.runs:
                copy(target[at : at + size], source[start : start + size])
        except Exception as caught:  # noqa: BLE001 - a thread that ended would hold up its job
            error = f"{type(caught).__name__}: {caught}"
        self._done.append(Written(work.token, error))
        self._wake.set()
        return True
