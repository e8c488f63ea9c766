"""Counts what goes wrong, and says each kind at most once a minute.

Whether there is a server is said more often: the log's last word about it has to be true.
Threads of the adapter never raise out of their loops: what they swallow is counted here, so that
a quiet engine can still be asked what it lost.

Must not know: who reports. Any thread may call it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from protocol.logline import NOTHING, About, extra, printable

LOG_EVERY_S: Final = 60.0
NEWS_EVERY_S: Final = 5.0
"""For lines of which the last has to be true: whether this engine has a server."""
MAX_KINDS: Final = 256
"""Kinds are names written in the source; the bound holds even if one were ever computed."""


class Journal:
    """Counters by kind, with a bounded number of log lines per kind."""

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

    def report(
        self,
        kind: str,
        message: str,
        level: int = logging.WARNING,
        every_s: float = LOG_EVERY_S,
        after: str = "",
        about: About = NOTHING,
    ) -> bool:
        """Counts, and logs unless this kind was logged a short while ago.

        Args:
            kind: name of the counter.
            message: one line for a person.
            level: of the log line.
            every_s: shortest time between two lines of this kind, seconds.
            after: kind to which this one is the answer: however short the while, it is said where
                that one was said since.
            about: which request, where it is about one; the line ends with it.

        Returns:
            Whether it was logged.
        """
        self.count(kind)
        return self.say(kind, message, level, every_s, after, about)

    def say(
        self,
        kind: str,
        message: str,
        level: int = logging.WARNING,
        every_s: float = LOG_EVERY_S,
        after: str = "",
        about: About = NOTHING,
    ) -> bool:
        """Does as ``report``, and counts nothing: for a line about what was counted before."""
        now_s = time.monotonic()
        with self._lock:
            said_s = self._said_at_s.get(kind)
            is_answer = said_s is not None and self._said_at_s.get(after, said_s) > said_s
            if said_s is not None and now_s - said_s < every_s and not is_answer:
                return False
            if said_s is not None or len(self._said_at_s) < MAX_KINDS:
                self._said_at_s[kind] = now_s
        of = f" [{about}]" if about is not NOTHING else ""
        about = about._replace(event=kind)
        self._logger.log(level, "%s%s", printable(message), of, extra=extra(about))
        return True

    def counters(self) -> dict[str, int]:
        """A copy of all counters, name to value."""
        with self._lock:
            return dict(self._counts)
