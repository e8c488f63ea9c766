"""The last hour, a point every five seconds.

What the dashboard draws, and nothing else: a few counters and gauges, those of the tiers, and the
buckets of the last five minutes, out of which recent percentiles come. Bounded by its lengths.
Must not know: HTTP, who asks. Runs in: the watching thread writes, the threads that serve read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from server.web.watch import EVERY_S, Answer

NUM_POINTS = 720
"""An hour."""

NUM_RECENT = 60
"""Points whose buckets are kept: five minutes."""

FIGURES = (
    "requests",
    "requested_tokens",
    "hit_tokens",
    "hit_tokens_l1",
    "loaded_tokens",
    "published_chunks",
    "evicted_chunks",
    "reclaimed_chunks",
    "copied_bytes",
    "arena_bytes",
    "arena_used_bytes",
    "instances",
    "leases",
)
"""Names of STATS in the order in which a point has them; hit_tokens are those of all tiers."""

TIER_FIGURES = ("hit_chunks", "get_bytes", "put_bytes", "used_bytes")
"""The same of a tier: ``tier_NAME_…``."""


@dataclass(frozen=True)
class Point:
    """What was told at one moment.

    Attributes:
        clock_s: of the wall clock, seconds since 1970, to the hundredth.
        is_answered: whether the server answered; figures are empty without.
        figures: as ``FIGURES`` has them.
        tiers: by name, as ``TIER_FIGURES`` has them.
    """

    clock_s: float
    is_answered: bool
    figures: tuple[int, ...] = ()
    tiers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


Buckets = dict[str, tuple[int, ...]]


class History:
    """The points; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: deque[Point] = deque(maxlen=NUM_POINTS)
        self._recent: deque[tuple[float, bytes, Buckets]] = deque(maxlen=NUM_RECENT)

    def note(self, answer: Answer) -> None:
        """Adds a point."""
        tiers = () if answer.status is None else (tier.name for tier in answer.status.tiers)
        point = _point(answer, tiers)
        with self._lock:
            self._points.append(point)
            if answer.status is not None:
                buckets = {op: told.buckets for op, told in answer.status.latency.items()}
                self._recent.append((answer.at_s, answer.status.server.epoch, buckets))

    def since(self, clock_s: float) -> list[Point]:
        """Points later than a moment of the wall clock; all of them for 0."""
        with self._lock:
            return [point for point in self._points if point.clock_s > clock_s]

    def buckets_before(self, answer: Answer) -> tuple[float, Buckets]:
        """The oldest buckets that are kept of the incarnation that answers now.

        Args:
            answer: of now, with a status.

        Returns:
            How long ago that was, seconds, and the buckets; 0 and none when there are none.
        """
        epoch = answer.status.server.epoch if answer.status is not None else b""
        oldest_s = answer.at_s - NUM_RECENT * EVERY_S
        with self._lock:
            for at_s, of, buckets in self._recent:
                if of == epoch and oldest_s <= at_s < answer.at_s:
                    return answer.at_s - at_s, buckets
        return 0.0, {}


def _point(answer: Answer, tiers: Iterable[str]) -> Point:
    clock_s = round(answer.clock_s, 2)
    if answer.why:
        return Point(clock_s, False)
    values = answer.values
    hit = sum(value for name, value in values.items() if name.startswith("hit_tokens_"))
    values = {**values, "hit_tokens": hit}
    return Point(
        clock_s,
        True,
        tuple(values.get(name, 0) for name in FIGURES),
        {
            tier: tuple(values.get(f"tier_{tier}_{name}", 0) for name in TIER_FIGURES)
            for tier in tiers
        },
    )
