"""What a run has found so far, from the reports of all ranks of all incarnations.

A rank's report holds figures since its start, and the last one that came before it was killed
counts. Must not know: processes, time. Any thread, under one lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from tests.chaos.stops import Call

_MAX_TOLD: Final = 60
_SUMMED: Final = (
    *("requests", "cancelled", "loads", "chunks", "prompt_tokens", "loaded_tokens"),
    *("device_tokens", "first_tokens", "first_loaded_tokens", "failed_offers", "failed_requests"),
)


class Tally:
    """Adds up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._live: dict[tuple[str, int], Counter[str]] = {}
        self._hooks: Counter[int] = Counter()
        self._live_hooks: dict[tuple[str, int], list[int]] = {}
        self._long: dict[tuple[str, int, str], list[Call]] = {}
        self._stacks: dict[tuple[str, int], list[str]] = {}
        self._troubles: list[str] = []
        self._seen: set[str] = set()
        self.num_troubles = 0

    def event(self, name: str, count: int = 1) -> None:
        """Something was done to a process, or happened to it."""
        with self._lock:
            self._events[name] += count

    def trouble(self, text: str) -> None:
        """Something that must not happen, in words; the same words count once."""
        with self._lock:
            self._trouble(text)

    def _trouble(self, text: str) -> None:
        if text not in self._seen:
            self._seen.add(text)
            self.num_troubles += 1
            if len(self._troubles) < _MAX_TOLD:
                self._troubles.append(text)

    def report(self, who: str, rank: int, found: Mapping[str, Any], calls: list[Call]) -> None:
        """Takes a rank's report.

        Args:
            who: engine and number of its incarnation.
            rank: of it.
            found: as ``labour.report``.
            calls: its long ones, judged.
        """
        counts = Counter({name: found.get("counts", {}).get(name, 0) for name in _SUMMED})
        counts["wrong_bytes"] = found["wrong_bytes"]
        counts["verified_pages"] = found["verified_pages"]
        counts["calls"] = found["calls"]
        counts.update({f"adapter.{name}": n for name, n in found["counters"].items()})
        with self._lock:
            self._live[who, rank] = counts
            self._live_hooks[who, rank] = found["hooks"]
            self._long[who, rank, "calls"] = calls
            self._stacks[who, rank] = list(found.get("stacks", ()))
            for text in found["wrong"]:
                self._trouble(f"wrong bytes: {who}, rank {rank}: {text}")
            for text in found.get("errors", ()):
                self._trouble(f"{who}: {text}")

    def ended(self, who: str, size: int) -> None:
        """An incarnation is over; its last reports stand."""
        with self._lock:
            for rank in range(size):
                self._ended += self._live.pop((who, rank), Counter())
                for at, count in enumerate(self._live_hooks.pop((who, rank), [])):
                    self._hooks[at] += count

    def sums(self) -> Counter[str]:
        """Events and figures so far."""
        with self._lock:
            total = self._ended + self._events
            for counts in self._live.values():
                total += counts
            return total

    def adapter(self) -> dict[str, int]:
        """The adapter's own counters, of all ranks and incarnations; gauges among them add up."""
        found = self.sums().items()
        return {
            name.removeprefix("adapter."): count
            for name, count in sorted(found)
            if name.startswith("adapter.")
        }

    def troubles(self) -> list[str]:
        """What must not happen and did, the first of it."""
        with self._lock:
            return list(self._troubles)

    def long_calls(self) -> list[tuple[str, Call]]:
        """Whose, and which, the longest first."""
        with self._lock:
            found = [(who, call) for (who, _, _), calls in self._long.items() for call in calls]
        return sorted(found, key=lambda one: -one[1].own_ns)

    def stacks(self, who: str) -> list[str]:
        """What was seen in an incarnation's ranks while one of their calls took long."""
        with self._lock:
            return [
                f"rank {rank} {note}"
                for (whose, rank), notes in sorted(self._stacks.items())
                if whose == who
                for note in notes
            ]

    def hook_us(self, share: float) -> float:
        """What a share of all hooks without a load did not exceed, microseconds.

        Args:
            share: 0.999 for all but one in a thousand.

        Returns:
            The upper end of a range whose ends are powers of two.
        """
        with self._lock:
            total = Counter(self._hooks)
            for buckets in self._live_hooks.values():
                for at, count in enumerate(buckets):
                    total[at] += count
        wanted, seen = share * sum(total.values()), 0
        for at in sorted(total):
            seen += total[at]
            if seen >= wanted:
                return float(2 << at)
        return 0.0
