"""The word that a process beside the server says now and then, so that one that hangs is noticed.

Purpose: it is written by the process's own main loop, on the pipe that its lines go through; a
process that is stopped, or whose loop hangs, says nothing. Must not know: who listens. Runs in: the
main thread of each such process; the server knows the word.
"""

from __future__ import annotations

import os
import select
import time

BEAT = "kvkeep beats"
EVERY_S = 2.0


class Heartbeat:
    """Says the word when it is due; never waits.

    Args:
        fd: of the pipe.
        every_s: time between two of them, seconds.
    """

    def __init__(self, fd: int, every_s: float = EVERY_S) -> None:
        self._fd = fd
        self._every_s = every_s
        self._next_s = 0.0

    def __call__(self) -> None:
        """Called with each turn of the loop."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        # A server that is stopped reads nothing; there is room for a line where poll says so.
        if select.select([], [self._fd], [], 0)[1]:
            os.write(self._fd, BEAT.encode("ascii") + b"\n")
