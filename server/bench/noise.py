"""What scraping changes, beside how much figures move without anybody scraping.

Purpose: each turn with a scraper is held against the one without that lies beside it; a change
counts when it is larger than what the turns without differ among themselves, and than a tenth. Must
not know: processes, how turns are measured. Runs in: the benchmark's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from server.bench.figures import Figure

LEAST_NOISE = 0.1
"""Changes below it are none, however quiet the machine was."""


@dataclass(frozen=True)
class Turn:
    """Figures of one stretch of lookups and copies.

    Attributes:
        lookup_p50_ms: of LOOKUPs of 4096 held blocks.
        lookup_p99_ms: of the same.
        echo_p50_ms: of bare echoes in turn with them, which no server is part of.
        store_ratio: to a plain copy of the same pages in the same rounds.
        retrieve_ratio: the same.
        loop_share: of a CPU that the loop took beside the copies.
    """

    lookup_p50_ms: float
    lookup_p99_ms: float
    echo_p50_ms: float
    store_ratio: float
    retrieve_ratio: float
    loop_share: float


WHICH: dict[str, bool] = {
    "lookup_p50_ms": False,
    "lookup_p99_ms": False,
    "store_ratio": True,
    "retrieve_ratio": True,
}
"""Names of judged figures, and whether more of it is better."""


def noise(values: Sequence[float]) -> float:
    """How far figures of equal turns lie apart: the middle half of them, by their median.

    Args:
        values: of one figure, one for each turn.

    Returns:
        A share; 0 for fewer than two.
    """
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)


def figures(without: Sequence[Turn], scraped: Sequence[Turn]) -> list[Figure]:
    """Judges a run.

    Args:
        without: turns in which nobody scraped.
        scraped: the turn beside each, in which somebody did.

    Returns:
        For each figure its value without, and the median over the pairs of with to without.
    """
    lines = []
    for name, is_more_better in WHICH.items():
        before = [getattr(turn, name) for turn in without]
        after = [getattr(turn, name) for turn in scraped]
        change = median(late / early for early, late in zip(before, after, strict=True))
        room = max(LEAST_NOISE, noise(before))
        unit = "ms" if name.endswith("_ms") else ""
        lines += [
            Figure(name, median(before), unit, f"scraped {median(after):.3f}"),
            Figure(
                f"{name.removesuffix('_ms')}_scraped_by_without",
                change,
                "",
                f"turns without lie {noise(before):.0%} apart",
                f"≥ {1 - room:.2f}" if is_more_better else f"≤ {1 + room:.2f}",
                change >= 1 - room if is_more_better else change <= 1 + room,
            ),
        ]
    pairs = zip(without, scraped, strict=True)
    echo = median(late.echo_p50_ms / early.echo_p50_ms for early, late in pairs)
    lines.append(
        Figure("echo_p50_scraped_by_without", echo, "", "a bare echo: what the machine itself did")
    )
    return lines
