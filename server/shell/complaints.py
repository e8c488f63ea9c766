"""Counts what goes wrong and logs it at a bounded rate, so that a bad peer cannot fill a disk.

Must not know: what the events mean. Runs in: any thread.
"""

from __future__ import annotations

import logging
import threading

from protocol.logline import NOTHING, About, extra, printable
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

    def note(
        self,
        kind: str,
        text: str,
        error: BaseException | None = None,
        about: About = NOTHING,
        traceback: str = "",
    ) -> None:
        """Counts one event and perhaps logs it.

        Args:
            kind: short name from the source code, never from a peer, so kinds are bounded.
            text: one line for a person.
            error: whose traceback helps, for faults of our own.
            about: which request, engine, namespace, where it is about one.
            traceback: of a fault of our own that is only there as text.
        """
        with self._lock:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            silent = self._due(kind)
        if silent >= 0:
            self._log(logging.WARNING, kind, text, silent, error, about, traceback)

    def tell(self, kind: str, rule: str, text: str, about: About) -> None:
        """Perhaps logs, at INFO, what is counted elsewhere and no complaint.

        Args:
            kind: as for ``note``; the line's event.
            rule: bounded apart from others of the kind, as the name of an error's code.
            text: one line for a person.
            about: which request, engine, namespace.
        """
        if not _log.isEnabledFor(logging.INFO):
            return
        with self._lock:
            silent = self._due(f"{kind} {rule}")
        if silent >= 0:
            self._log(logging.INFO, kind, text, silent, None, about)

    def _due(self, name: str) -> int:
        """How many were left out before this one, -1 when this one is. Under the lock."""
        now_ns = clock.now_ns()
        if now_ns < self._next_ns.get(name, 0):
            self._silent[name] = self._silent.get(name, 0) + 1
            return -1
        self._next_ns[name] = now_ns + self._interval_ns
        return self._silent.pop(name, 0)

    def _log(
        self,
        level: int,
        kind: str,
        text: str,
        silent: int,
        error: BaseException | None,
        about: About,
        traceback: str = "",
    ) -> None:
        more = f" ({silent} more of this kind since the last such line)" if silent else ""
        of = f" [{about}]" if str(about) else ""
        about = about._replace(event=kind, left_out=silent)
        text = printable(text)  # a peer's words may be in it, or a child's, or a store's
        more += "".join(f"\n{printable(line)}" for line in traceback.splitlines())
        _log.log(level, "%s: %s%s%s", kind, text, of, more, exc_info=error, extra=extra(about))

    def counts(self) -> dict[str, int]:
        """Events so far, by kind."""
        with self._lock:
            return dict(self._counts)

    def figures(self) -> dict[str, int]:
        """The same for STATS."""
        return {f"complaint_{kind}": count for kind, count in self.counts().items()}
