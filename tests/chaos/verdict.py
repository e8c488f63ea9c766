"""Says of a run's figures whether it counts at all, and whether everything held.

Must not know: how figures came about. A pure function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MIN_HIT_RATIO: Final = 0.3
MIN_HIT_RATIO_WITH_TIERS: Final = 0.2
"""Arenas are a third as large then; what tiers give is counted by itself."""

LOADS_PER_MINUTE: Final = 5000
ENGINE_KILLS_PER_MINUTE: Final = 6
SERVER_KILLS_PER_MINUTE: Final = 2
PORTER_KILLS_PER_MINUTE: Final = 1
"""Half of what the script has: one that keeps being killed comes again after up to 10 s."""

TIER_CHUNKS_PER_MINUTE: Final = 50
MAX_RSS_SLOPE: Final = 1.0
LONG_MINUTES: Final = 10
"""Runs this long and longer must verify as many loads as they claim; shorter ones a fifth."""

_ZERO: Final = (
    *("wrong_bytes", "failed_offers", "failed_requests", "engine_deaths", "hangs", "leaks"),
    "troubles",
)


@dataclass(frozen=True)
class Verdict:
    """Of a run.

    Attributes:
        invalid: why it shows nothing; empty when it counts.
        wrong: what did not hold; empty when all did.
    """

    invalid: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def held(self) -> bool:
        """Whether it counts and nothing was wrong."""
        return not (self.invalid or self.wrong)


def min_loads(minutes: float) -> int:
    """Verified loads that a run of some length must have."""
    share = 1.0 if minutes >= LONG_MINUTES else 0.2
    return int(LOADS_PER_MINUTE * minutes * share)


def judge(figures: Mapping[str, Any], minutes: float, has_tiers: bool = False) -> Verdict:
    """Judges a run.

    Args:
        figures: as the report has them.
        minutes: how long it was to be.
        has_tiers: whether the server had lower tiers, which then must have been at work, and hit.
    """
    wanted = {
        "engine_kills": ENGINE_KILLS_PER_MINUTE * minutes,
        "server_kills": SERVER_KILLS_PER_MINUTE * minutes,
        "loads_verified": min_loads(minutes),
    }
    if has_tiers:
        wanted["porter_kills"] = PORTER_KILLS_PER_MINUTE * minutes
        wanted["tier_chunks"] = TIER_CHUNKS_PER_MINUTE * minutes
    invalid = [
        f"{name} {figures[name]}, at least {least:g} are needed"
        for name, least in wanted.items()
        if figures[name] < least
    ]
    least_ratio = MIN_HIT_RATIO_WITH_TIERS if has_tiers else MIN_HIT_RATIO
    if figures["hit_ratio"] <= least_ratio:
        invalid.append(f"hit_ratio {figures['hit_ratio']}, above {least_ratio} is needed")
    wrong = [f"{name} {figures[name]}" for name in _ZERO if figures[name]]
    growth = figures["rss_slope_mib_per_min"]
    if minutes >= LONG_MINUTES and growth is None:
        invalid.append("the last server did not live long enough to see its memory grow")
    elif growth is not None and minutes >= LONG_MINUTES and growth >= MAX_RSS_SLOPE:
        wrong.append(f"rss_slope_mib_per_min {growth}, below {MAX_RSS_SLOPE} is right")
    return Verdict(tuple(invalid), tuple(wrong))
