"""The time of the event that is being handled.

Purpose: time is an argument of every event; parts of the core read it here instead of passing it
through each call. Must not know: any real clock. Runs in: the loop thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Clock:
    """What time it is, as the shell last said.

    Attributes:
        now_ns: on the server's monotonic clock; never goes back.
    """

    now_ns: int = 0

    @property
    def now_us(self) -> int:
        """The same in microseconds, for stamps."""
        return self.now_ns // 1000

    def advance(self, now_ns: int) -> None:
        """Takes a new reading."""
        self.now_ns = max(self.now_ns, now_ns)


@dataclass
class Timers:
    """Callbacks by due time; a cancelled one is left out when its time comes.

    Attributes:
        clock: the core's clock.
    """

    clock: Clock
    _heap: list[tuple[int, int]] = field(default_factory=list)
    _calls: dict[int, Callable[[], None]] = field(default_factory=dict)
    _next: int = 1

    def at(self, due_ns: int, call: Callable[[], None]) -> int:
        """Arranges a call.

        Args:
            due_ns: when.
            call: what.

        Returns:
            A number for ``cancel``.
        """
        number, self._next = self._next, self._next + 1
        self._calls[number] = call
        heapq.heappush(self._heap, (due_ns, number))
        return number

    def cancel(self, number: int) -> None:
        """Takes a call back; 0 and spent numbers are ignored."""
        self._calls.pop(number, None)
        # Cancelled entries are the rule (a STORE is committed long before its time-out), so the
        # heap is rebuilt before they outnumber the live ones by much.
        if len(self._heap) > 64 + 4 * len(self._calls):
            self._heap = [entry for entry in self._heap if entry[1] in self._calls]
            heapq.heapify(self._heap)

    def next_ns(self) -> int | None:
        """When the first call is due, or None."""
        while self._heap and self._heap[0][1] not in self._calls:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_due(self) -> None:
        """Makes the calls whose time has come."""
        while self._heap and self._heap[0][0] <= self.clock.now_ns:
            call = self._calls.pop(heapq.heappop(self._heap)[1], None)
            if call is not None:
                call()
