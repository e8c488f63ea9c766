"""What a soak says: latencies per minute, slopes, and whether they are flat.

Pure functions over samples; knows nothing of servers. Runs anywhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

STEPS_PER_DOUBLING = 16
"""Buckets of latencies are 4.4 % wide."""

MAX_SLOPE_MIB_PER_MIN = 1.0
MAX_GROWTH_MIB = 8.0
"""In runs too short for a slope to mean something."""

MAX_MORE_DESCRIPTORS = 8
MIN_MINUTES_FOR_SLOPE = 5.0
WARM_UP_SHARE, WARM_UP_LIMIT_S = 0.4, 120.0
"""What is left out at the beginning, while arena, index and heaps fill."""


class Latencies:
    """Counts of durations in buckets of equal ratio."""

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.counts: Counter[int] = Counter(
            {int(bucket): count for bucket, count in (counts or {}).items()}
        )

    def add(self, seconds: float) -> None:
        """Counts one duration."""
        self.counts[round(math.log2(max(seconds, 1e-6)) * STEPS_PER_DOUBLING)] += 1

    def merge(self, other: Latencies) -> None:
        """Adds another's counts."""
        self.counts.update(other.counts)

    def percentile_ms(self, share: float) -> float:
        """The duration below which a share of all lies, in milliseconds; 0 without any."""
        left = self.counts.total() * share
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return round(1000 * 2 ** (bucket / STEPS_PER_DOUBLING), 3)
        return 0.0

    def plain(self) -> dict[str, int]:
        """For JSON."""
        return {str(bucket): count for bucket, count in self.counts.items()}


@dataclass
class Sample:
    """The server at one moment.

    Attributes:
        at_s: since the start.
        anon_mib: private resident memory of its main process.
        descriptors: open in its main process.
    """

    at_s: float
    anon_mib: float
    descriptors: int


@dataclass
class Minute:
    """One minute of work.

    Attributes:
        counts: by what was done.
        lookups: how long LOOKUPs took.
    """

    counts: Counter[str] = field(default_factory=Counter)
    lookups: Latencies = field(default_factory=Latencies)


def slope_per_min(samples: Sequence[Sample]) -> float:
    """Growth of private memory by least squares.

    Args:
        samples: at least two, at different times.

    Returns:
        MiB per minute.
    """
    times = [sample.at_s / 60 for sample in samples]
    values = [sample.anon_mib for sample in samples]
    mean_time, mean_value = sum(times) / len(times), sum(values) / len(values)
    spread = sum((time - mean_time) ** 2 for time in times)
    both = zip(times, values, strict=True)
    return sum((time - mean_time) * (value - mean_value) for time, value in both) / spread


def warm(samples: Sequence[Sample], seconds: float) -> list[Sample]:
    """Those after the warm-up."""
    begin_s = min(WARM_UP_LIMIT_S, WARM_UP_SHARE * seconds)
    return [sample for sample in samples if sample.at_s >= begin_s]


def verdicts(
    samples: Sequence[Sample], minutes: Sequence[Minute], seconds: float
) -> dict[str, bool]:
    """Whether the run is what it should be, claim by claim.

    Args:
        samples: in order of time.
        minutes: all of them.
        seconds: how long it ran.
    """
    steady = warm(samples, seconds)
    counts = sum((minute.counts for minute in minutes), Counter())
    growth = max(one.anon_mib for one in steady) - steady[0].anon_mib
    long_enough = seconds >= 60 * MIN_MINUTES_FOR_SLOPE
    descriptors = [one.descriptors for one in steady]
    return {
        "memory is flat": (
            slope_per_min(steady) < MAX_SLOPE_MIB_PER_MIN
            if long_enough
            else growth < MAX_GROWTH_MIB
        ),
        "descriptors are flat": max(descriptors) - min(descriptors) <= MAX_MORE_DESCRIPTORS,
        "every checked page was right": counts["wrong_pages"] == 0 and counts["loaded_pages"] > 0,
        "no request failed": counts["errors"] == 0,
        "the cache was too small": counts["missed_pages"] > counts["loaded_pages"] // 10,
    }
