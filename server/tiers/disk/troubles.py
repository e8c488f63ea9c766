"""What went wrong with a tier's files, counted, and told without flooding the log.

Must not know: files. Runs in: the porter's worker threads and the tier's own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

AGAIN_S = 60.0
"""A kind of trouble is logged at once, then at most this often."""

_MAX_LINE_CHARS = 200
_log = logging.getLogger("kvkeep.porter")


class Troubles:
    """Counters by kind.

    Attributes:
        what: the tier, as its log lines name it.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts at nothing.

        Args:
            what: as above.
            clock: seconds, never going back.
        """
        self.what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._told_s: dict[str, float] = {}

    def count(self, kind: str, by: int = 1) -> None:
        """Counts what is no trouble for anybody to act on."""
        with self._lock:
            self._counts[kind] += by

    def tell(self, kind: str, why: object) -> None:
        """Counts a trouble and, if that kind was quiet for a while, logs it.

        Args:
            kind: one of few words, the counter's name.
            why: for people, without secrets.
        """
        now_s = self._clock()
        with self._lock:
            self._counts[kind] += 1
            times = self._counts[kind]
            last_s = self._told_s.get(kind)
            if last_s is not None and now_s - last_s < AGAIN_S:
                return
            self._told_s[kind] = now_s
        _log.warning("tier %s: %s: %s (%d so far)", self.what, kind, why, times)

    def of(self, kind: str) -> int:
        """How often so far."""
        with self._lock:
            return self._counts[kind]

    def line(self) -> str:
        """All counters in one short line, the most frequent first."""
        with self._lock:
            counts = self._counts.most_common()
        return ", ".join(f"{kind} {times}" for kind, times in counts)[:_MAX_LINE_CHARS]
