"""Counts what goes wrong, and says each kind at most once a minute.

Threads of the adapter never raise out of their loops: what they swallow is counted here, so that
a quiet engine can still be asked what it lost.

Must not know: who reports. Any thread may call it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

LOG_EVERY_S: Final = 60.0
MAX_KINDS: Final = 256
"""Kinds are names written in the source; the bound holds even if one were ever computed."""


class Journal:
    """Counters by kind, with a log line per kind and minute."""

    def __init__(self, logger: logging.Logger) -> None:
        """Starts with no counts.

        Args:
            logger: where the lines go.
        """
        self._logger = logger
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._said_at_s: dict[str, float] = {}

    def count(self, kind: str, amount: int = 1) -> None:
        """Counts without a line.

        Args:
            kind: name of the counter, as in ``call_timeouts``.
            amount: how many.
        """
        with self._lock:
            if kind in self._counts or len(self._counts) < MAX_KINDS:
                self._counts[kind] = self._counts.get(kind, 0) + amount

    def report(self, kind: str, message: str, level: int = logging.WARNING) -> None:
        """Counts, and logs unless this kind was logged within the last minute.

        Args:
            kind: name of the counter.
            message: one line for a person.
            level: of the log line.
        """
        self.count(kind)
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._said_at_s.get(kind, -LOG_EVERY_S) < LOG_EVERY_S:
                return
            if kind in self._said_at_s or len(self._said_at_s) < MAX_KINDS:
                self._said_at_s[kind] = now_s
        self._logger.log(level, "%s", message)

    def counters(self) -> dict[str, int]:
        """A copy of all counters, name to value."""
        with self._lock:
            return dict(self._counts)
