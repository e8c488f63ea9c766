"""Counts what goes wrong and logs it at a bounded rate, so that a bad peer cannot fill a disk.

Must not know: what the events mean. Runs in: any thread.
"""

from __future__ import annotations

import logging
import threading

from server.shell import clock

_log = logging.getLogger("kvkeep.server")

LOG_INTERVAL_S = 10


class Complaints:
    """One counter per kind of event; each kind is logged at most every LOG_INTERVAL_S."""

    def __init__(self, interval_s: float = LOG_INTERVAL_S) -> None:
        self._interval_ns = int(interval_s * clock.NS_PER_S)
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._next_ns: dict[str, int] = {}
        self._silent: dict[str, int] = {}

    def note(self, kind: str, text: str, error: BaseException | None = None) -> None:
        """Counts one event and perhaps logs it.

        Args:
            kind: short name from the source code, never from a peer, so kinds are bounded.
            text: one line for a person.
            error: whose traceback helps, for faults of our own.
        """
        now_ns = clock.now_ns()
        with self._lock:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            if now_ns < self._next_ns.get(kind, 0):
                self._silent[kind] = self._silent.get(kind, 0) + 1
                return
            self._next_ns[kind] = now_ns + self._interval_ns
            silent = self._silent.pop(kind, 0)
        more = f" ({silent} more of this kind since the last such line)" if silent else ""
        _log.warning("%s: %s%s", kind, text, more, exc_info=error)

    def counts(self) -> dict[str, int]:
        """Events so far, by kind."""
        with self._lock:
            return dict(self._counts)

    def figures(self) -> dict[str, int]:
        """The same for STATS."""
        return {f"complaint_{kind}": count for kind, count in self.counts().items()}
