"""Bytes a second, one way, for all threads of a porter together.

Must not know: what the bytes are. Runs in: a porter's worker threads.
"""

from __future__ import annotations

import threading
import time


class Pace:
    """Lets bytes through no faster than so many a second.

    Args:
        bytes_s: 0 for no bound.
        stopping: ends every wait.
    """

    def __init__(self, bytes_s: int, stopping: threading.Event) -> None:
        self._bytes_s = bytes_s
        self._stopping = stopping
        self._lock = threading.Lock()
        self._free_s = 0.0

    def wait(self, num_bytes: int) -> None:
        """Waits until these bytes may go; those who come later wait behind them.

        Args:
            num_bytes: about to be moved.
        """
        if not self._bytes_s:
            return
        with self._lock:
            now_s = time.monotonic()
            begin_s = max(now_s, self._free_s)
            self._free_s = begin_s + num_bytes / self._bytes_s
        if begin_s > now_s:
            self._stopping.wait(begin_s - now_s)
