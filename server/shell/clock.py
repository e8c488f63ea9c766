"""The server's one clock: monotonic nanoseconds, on which deadlines are told.

Must not know: wall-clock time. Runs in: any thread.
"""

from __future__ import annotations

import time

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


def now_ns() -> int:
    """Reads the clock.

    Returns:
        Nanoseconds since an arbitrary start; comparable between processes of one host, since
        CLOCK_MONOTONIC is one for all of them.
    """
    return time.monotonic_ns()
