"""Ends this process when a call of the Mooncake library does not come back.

Purpose: the library may wait a minute for each value of a node that stands still, and what it gives
up may still write into memory afterwards. Nobody can take a call back; the end of its process can,
and the server is prepared for that. Must not know: what calls do. Runs in: the porter, a thread of
its own beside the worker threads.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger("kvkeep.porter")

LIMIT_S = 10.0
"""Of one call; the longest seen to end by itself took six. A porter in which nothing moves for as
long is ended by the server, but others may go on here while one call is caught."""

_STEPS = 4


def end_process() -> None:
    """Ends this process; the kernel takes its connections and its mappings, the last write too."""
    os.kill(os.getpid(), signal.SIGKILL)


class Watch:
    """Looks after calls under way.

    Args:
        limit_s: what one may take.
        lost: called when one takes longer; does not return.
    """

    def __init__(self, limit_s: float = LIMIT_S, lost: Callable[[], None] = end_process) -> None:
        self._limit_s = limit_s
        self._lost = lost
        self._numbers = itertools.count()
        self._begun: dict[int, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, name="mooncake-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def over(self) -> Iterator[None]:
        """For the time of a call."""
        number, begun = next(self._numbers), time.monotonic()
        self._begun[number] = begun
        try:
            yield
        finally:
            del self._begun[number]
            # The whole process may have stood still, this thread's watcher with it.
            self._judge(begun)

    def close(self) -> None:
        """No call is under way any more."""
        self._closing.set()
        self._thread.join(self._limit_s)

    def _look(self) -> None:
        while not self._closing.wait(self._limit_s / _STEPS):
            for begun in list(self._begun.values()):
                self._judge(begun)

    def _judge(self, begun: float) -> None:
        if time.monotonic() - begun > self._limit_s:
            _log.error("mooncake: a call takes longer than %g s: this porter ends", self._limit_s)
            self._lost()
