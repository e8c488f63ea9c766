"""How long hooks and control calls of one process took, with the times of those that took long.

Only times are kept, on the clock that all processes share: who stopped this process when, the
conductor knows. Must not know: what a call is about. Any thread of a rank's process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from adapter.conformance.host.hooks import BRING_UP, NUM_BUCKETS, HookRecorder

LONG_NS: Final = 40_000_000
"""Calls that took longer are kept one by one."""

_MAX_LONG: Final = 500


class Watch:
    """Times calls; those that are under way can be seen too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, list[tuple[str, int]]] = {}
        self._long: list[tuple[str, int, int]] = []
        self.num_calls = 0
        self.num_long_lost = 0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Times the body, also when it raises."""
        begin_ns, thread = time.monotonic_ns(), threading.get_ident()
        stack = self._running.setdefault(thread, [])
        stack.append((name, begin_ns))
        try:
            yield
        finally:
            stack.pop()
            end_ns = time.monotonic_ns()
            self.num_calls += 1
            if end_ns - begin_ns > LONG_NS:
                self._note(name, begin_ns, end_ns)

    def _note(self, name: str, begin_ns: int, end_ns: int) -> None:
        with self._lock:
            self._long.append((name, begin_ns, end_ns))
            if len(self._long) > _MAX_LONG:
                # The shortest goes: what may be a hang stays.
                self._long.remove(min(self._long, key=lambda one: one[2] - one[1]))
                self.num_long_lost += 1

    def long_ones(self) -> list[tuple[str, int, int]]:
        """Name, begin and end in nanoseconds of each long call; those under way end now."""
        now_ns = time.monotonic_ns()
        with self._lock:
            ended = list(self._long)
        return ended + [
            (f"{name} (not ended)", begin_ns, now_ns)
            for name, begin_ns in self.running()
            if now_ns - begin_ns > LONG_NS
        ]

    def running(self) -> list[tuple[str, int]]:
        """Name and begin in nanoseconds of each call that is under way."""
        return [one for stack in list(self._running.values()) for one in tuple(stack)]


class WatchedHooks(HookRecorder):
    """Counts hooks as the host's recorder does, and hands the long ones to a watch."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    @contextmanager
    def timed(self, name: str, *, with_load: bool = False) -> Iterator[None]:
        with (
            self._watch.timed(f"hook {name}{' with a load' if with_load else ''}"),
            super().timed(name, with_load=with_load),
        ):
            yield

    def histogram(self) -> list[int]:
        """Calls without a load by power of two of microseconds, bring-up left out."""
        total = [0] * NUM_BUCKETS
        with self._lock:
            found = [
                stats.buckets
                for (hook, with_load), stats in self._stats.items()
                if not with_load and hook not in BRING_UP
            ]
            for buckets in found:
                total = [one + other for one, other in zip(total, buckets, strict=True)]
        return total


def watched(watch: Watch, function: Callable[..., Any], name: Callable[..., str]) -> Any:
    """A function that is timed.

    Args:
        watch: keeps the times.
        function: to be called with whatever comes.
        name: of a call, from the same arguments.
    """

    def call(*arguments: Any, **named: Any) -> Any:
        with watch.timed(name(*arguments, **named)):
            return function(*arguments, **named)

    return call
