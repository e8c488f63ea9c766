"""How long each connector hook kept the executor's thread.

A hook with a load in it is counted apart: only loads may take long (design rule
7), so the longest hook without one is the number to watch.

Must not know: what the hooks do. Written by the executor's thread (and the
constructing threads), read from any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

NUM_BUCKETS: Final = 24
"""Bucket i counts durations in [2^i, 2^(i+1)) microseconds; the first also shorter ones."""

BRING_UP: Final = frozenset(
    {
        "register_forward_pass_callable",
        "register_kv_caches",
        "register_kv_cache_layout",
        "wait_for_initialization",
    }
)
"""Called once on the main thread, before the executor runs: no iteration waits for these."""


@dataclass
class HookStats:
    """Durations of one hook.

    Attributes:
        buckets: Counts by power of two of microseconds.
    """

    num_calls: int = 0
    total_ns: int = 0
    max_ns: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * NUM_BUCKETS)

    def add(self, duration_ns: int) -> None:
        """Count one call."""
        self.num_calls += 1
        self.total_ns += duration_ns
        self.max_ns = max(self.max_ns, duration_ns)
        exponent = (duration_ns // 1000).bit_length() - 1
        self.buckets[min(max(exponent, 0), NUM_BUCKETS - 1)] += 1


class HookRecorder:
    """Collects durations by hook name and by whether a load was in it."""

    def __init__(self) -> None:
        """Start with nothing recorded."""
        self._lock = threading.Lock()
        self._stats: dict[tuple[str, bool], HookStats] = {}

    @contextmanager
    def timed(self, name: str, *, with_load: bool = False) -> Iterator[None]:
        """Time the body, also when it raises.

        Args:
            name: Hook name.
            with_load: Whether this call moves loaded bytes.
        """
        begin_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            duration_ns = time.perf_counter_ns() - begin_ns
            with self._lock:
                self._stats.setdefault((name, with_load), HookStats()).add(duration_ns)

    def num_calls(self, name: str) -> int:
        """Calls of a hook, loads or not."""
        with self._lock:
            return sum(s.num_calls for (hook, _), s in self._stats.items() if hook == name)

    def longest(self, *, with_load: bool = False) -> tuple[str, int]:
        """The hook that kept the executor's thread longest; bring-up does not count.

        Args:
            with_load: Look at calls with a load in them instead of those without.

        Returns:
            Its name and duration in nanoseconds; ``("", 0)`` if there was none.
        """
        with self._lock:
            rows = [
                (stats.max_ns, hook)
                for (hook, load), stats in self._stats.items()
                if load == with_load and hook not in BRING_UP
            ]
        max_ns, name = max(rows, default=(0, ""))
        return name, max_ns

    def as_rows(self) -> list[dict[str, object]]:
        """All durations, JSON-ready, the longest hook first."""
        with self._lock:
            rows: list[dict[str, object]] = [
                {
                    "hook": hook,
                    "with_load": load,
                    "bring_up": hook in BRING_UP,
                    "num_calls": stats.num_calls,
                    "mean_us": stats.total_ns / stats.num_calls / 1000,
                    "max_us": stats.max_ns / 1000,
                    "buckets_log2_us": list(stats.buckets),
                }
                for (hook, load), stats in sorted(
                    self._stats.items(), key=lambda item: -item[1].max_ns
                )
            ]
        return rows
