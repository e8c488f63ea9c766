"""Who was stopped when, and which calls took longer than that explains.

Times are of the clock that all processes of a machine share. Must not know: processes beyond their
ids, what calls are about. Any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

HANG_NS: Final = 2_000_000_000
"""A control call that took this much longer than its own process was stopped is a hang."""


@dataclass(frozen=True)
class Call:
    """One long call, in its own process's words.

    Attributes:
        name: of a hook or an operation.
        own_ns: its duration without the time its process was stopped.
        whole_ns: its duration.
        begin_ns: when it began.
    """

    name: str
    own_ns: int
    whole_ns: int
    begin_ns: int = 0

    @property
    def is_hang(self) -> bool:
        """Whether nothing explains it."""
        return self.own_ns > HANG_NS


class Stops:
    """Stretches of time in which processes were stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[int, list[list[int]]] = {}

    def begin(self, pid: int, at_ns: int | None = None) -> None:
        """A process is about to be stopped.

        Args:
            pid: which.
            at_ns: since when it may have been; now by default.
        """
        with self._lock:
            begin_ns = time.monotonic_ns() if at_ns is None else at_ns
            self._spans.setdefault(pid, []).append([begin_ns, 0])

    def end(self, pid: int) -> None:
        """It was continued, or is gone."""
        with self._lock:
            for span in self._spans.get(pid, []):
                span[1] = span[1] or time.monotonic_ns()

    def is_stopped(self, pid: int) -> bool:
        """Whether it is stopped now."""
        with self._lock:
            return any(not end for _, end in self._spans.get(pid, []))

    def within(self, pid: int, begin_ns: int, end_ns: int) -> int:
        """Nanoseconds of a stretch of time in which a process was stopped."""
        with self._lock:
            spans = sorted((b, e or time.monotonic_ns()) for b, e in self._spans.get(pid, []))
        total, reached = 0, begin_ns
        for begin, end in spans:
            first, last = max(begin, reached), min(end, end_ns)
            if last > first:
                total += last - first
                reached = last
        return total

    def judge(self, pid: int, calls: Iterable[tuple[str, int, int]]) -> list[Call]:
        """Calls of a process, without the time it was stopped.

        Args:
            pid: whose.
            calls: name, begin and end of each, in nanoseconds.
        """
        return [
            Call(
                name,
                end_ns - begin_ns - self.within(pid, begin_ns, end_ns),
                end_ns - begin_ns,
                begin_ns,
            )
            for name, begin_ns, end_ns in calls
        ]
