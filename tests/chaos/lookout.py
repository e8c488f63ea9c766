"""Looks at the server from outside, once a second: does it answer, how much memory has it.

A question that a living, running and reachable server does not answer in time is a hang. Must not
know: engines. One thread.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from protocol.errors import KvkeepError
from server.asking import stats
from tests.chaos.host import Incarnation, Server
from tests.chaos.processes import rss_anon_bytes
from tests.chaos.stops import HANG_NS, Stops
from tests.chaos.tally import Tally

_EVERY_S: Final = 1.0
_ASK_S: Final = 4.0
_FROM_A_TIER: Final = re.compile(r"tier_.+_hit_chunks")
SETTLED_S: Final = 20.0
"""The memory of an incarnation counts from then on: caches and pools of objects are full."""


class Lookout(threading.Thread):
    """Asks and looks until told to end.

    Args:
        server: to look at.
        stops: who was stopped when.
        tally: is told of hangs.
    """

    def __init__(self, server: Server, stops: Stops, tally: Tally) -> None:
        super().__init__(name="lookout", daemon=True)
        self._server, self._stops, self._tally = server, stops, tally
        self._over = threading.Event()
        self._hidden: list[list[int]] = []
        self.answer_ms: list[float] = []
        self.last: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self._from_tiers: list[int] = []
        self._samples: list[tuple[float, int]] = []
        self._sampled: Incarnation | None = None

    def run(self) -> None:
        """Until told to end."""
        while not self._over.wait(_EVERY_S):
            now = self._server.now
            if now is not None:
                self._look(now)

    def end(self) -> None:
        """Ends; ``join`` waits for it."""
        self._over.set()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """The sockets cannot be reached meanwhile."""
        span = [time.monotonic_ns(), 0]
        self._hidden.append(span)
        try:
            yield
        finally:
            span[1] = time.monotonic_ns()

    def ask(self, limit_s: float) -> dict[str, int]:
        """The server's counters.

        Raises:
            OSError: it does not answer.
            KvkeepError: it refuses.
        """
        return stats(self._server.side, limit_s)

    def _look(self, now: Incarnation) -> None:
        if now is not self._sampled:
            self._sampled, self._samples = now, []
            self._from_tiers.append(0)
        begin_ns = time.monotonic_ns()
        rss = rss_anon_bytes(now.grip.pid)
        if rss:
            self._samples.append((begin_ns / 1e9, rss))
        try:
            found, why = self.ask(_ASK_S), ""
        except (OSError, KvkeepError) as error:
            found, why = {}, repr(error)
        end_ns = time.monotonic_ns()
        if now.gone_ns or now is not self._server.now or self._was_hidden(begin_ns, end_ns):
            return
        own_ns = end_ns - begin_ns - self._stops.within(now.grip.pid, begin_ns, end_ns)
        if own_ns > HANG_NS:
            self._tally.event("server_hangs")
            self._tally.trouble(
                f"STATS took {own_ns / 1e9:.2f} s of a running server: {why or 'answered'}"
            )
        elif why and not self._stops.within(now.grip.pid, begin_ns - HANG_NS, end_ns):
            self._tally.trouble(f"STATS failed on a running server: {why}")
        if found:
            self.answer_ms.append(own_ns / 1e6)
            self.last = found
            self._from_tiers[-1] = sum(
                value for name, value in found.items() if _FROM_A_TIER.fullmatch(name)
            )
            if found.get("internal_errors"):
                self._tally.trouble(f"{found['internal_errors']} internal errors of the server")
            if not is_in_order(found):
                self._tally.trouble(f"tokens are not in order: {found}")
            for name, value in found.items():
                self.most[name] = max(value, self.most.get(name, 0))

    @property
    def tier_chunks(self) -> int:
        """Chunks that came from lower tiers, of all incarnations; each but for its last second."""
        return sum(self._from_tiers)

    def memory_samples(self) -> list[tuple[float, float]]:
        """Seconds since the present incarnation was seen first, and MiB; one in five."""
        samples = self._samples[::5]
        return [(round(s - samples[0][0], 1), round(rss / (1 << 20), 2)) for s, rss in samples]

    def _was_hidden(self, begin_ns: int, end_ns: int) -> bool:
        return any(begin < end_ns and not 0 < end < begin_ns for begin, end in self._hidden)

    def memory(self) -> tuple[float | None, float]:
        """How the server's private memory grows.

        Returns:
            MiB per minute, by least squares, of the present incarnation without its first
            ``SETTLED_S``, or None when that is too short; and the seconds it is of.
        """
        samples = self._samples
        settled = [(s, rss) for s, rss in samples if s - samples[0][0] >= SETTLED_S]
        if len(settled) < 10:
            return None, 0.0
        return slope(settled) * 60 / (1 << 20), settled[-1][0] - settled[0][0]


def is_in_order(counters: Mapping[str, int]) -> bool:
    """Whether no more tokens were hit than requested, and no more loaded than hit.

    Args:
        counters: of STATS.
    """
    hit = sum(value for name, value in counters.items() if name.startswith("hit_tokens_"))
    return counters.get("requested_tokens", 0) >= hit >= counters.get("loaded_tokens", 0)


def slope(points: Sequence[tuple[float, int]]) -> float:
    """Of the line that fits best.

    Args:
        points: x and y of at least two, with different x.
    """
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    over = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return over / sum((x - mean_x) ** 2 for x, _ in points)


def files_of(arena_dir: Path) -> list[str]:
    """Names of all files below the arena's folder."""
    return sorted(
        str(path.relative_to(arena_dir)) for path in arena_dir.rglob("*") if path.is_file()
    )
