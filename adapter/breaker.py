"""The breaker: after the first time-out, calls fail at once until a probe was answered.

A server that is stopped, overloaded or half dead must cost an engine one time-out, not one per
request (design rule 7). Calls trip it; the keeper probes in the background and closes it.

Must not know: sockets, what was called. Any thread may trip or ask; only the keeper's thread
reports probes. Time is an argument.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

FIRST_DELAY_NS: Final = 50_000_000
"""From the first trip to the first probe."""

MAX_DELAY_NS: Final = 2_000_000_000
"""Longest pause between probes."""

CALM_NS: Final = 5_000_000_000
"""Closed for this long, the next trip starts with the first delay again. A server that answers
probes and nothing else must not be asked twenty times a second."""


class Breaker:
    """One breaker per link, shared by all of its channels.

    Attributes:
        is_open: whether calls must fail at once. Reading it needs no lock.
        reason: why it was tripped last, in a few words.
    """

    def __init__(self, on_trip: Callable[[], None]) -> None:
        """Starts closed.

        Args:
            on_trip: called, from whichever thread trips it, when it goes from closed to open.
        """
        self.is_open = False
        self.reason = ""
        self._on_trip = on_trip
        self._lock = threading.Lock()
        self._delay_ns = FIRST_DELAY_NS
        self._probe_at_ns = 0
        self._closed_at_ns = -CALM_NS

    def trip(self, reason: str, now_ns: int) -> None:
        """Opens the breaker; nothing happens when it is open already.

        Args:
            reason: for the log and for the errors of refused calls.
            now_ns: monotonic clock.
        """
        with self._lock:
            if self.is_open:
                return
            if now_ns - self._closed_at_ns >= CALM_NS:
                self._delay_ns = FIRST_DELAY_NS
            else:
                self._delay_ns = min(2 * self._delay_ns, MAX_DELAY_NS)
            self.is_open = True
            self.reason = reason
            self._probe_at_ns = now_ns + self._delay_ns
        self._on_trip()

    def probe_at_ns(self) -> int | None:
        """When the keeper may probe next, on the monotonic clock; None while closed."""
        with self._lock:
            return self._probe_at_ns if self.is_open else None

    def probe_failed(self, now_ns: int) -> None:
        """A probe got no answer in time: the next one waits twice as long, at most 2 s.

        Args:
            now_ns: monotonic clock.
        """
        with self._lock:
            self._delay_ns = min(2 * self._delay_ns, MAX_DELAY_NS)
            self._probe_at_ns = now_ns + self._delay_ns

    def close(self, now_ns: int) -> None:
        """A probe was answered in time: calls go through again.

        Args:
            now_ns: monotonic clock.
        """
        with self._lock:
            if self.is_open:
                self.is_open = False
                self._closed_at_ns = now_ns
