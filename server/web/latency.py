"""Percentiles and sums of the server's histograms.

Must not know: where the counts come from. Runs in: the threads that serve.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.status import SLOW_US


def quantile_us(bounds: Sequence[int], counts: Sequence[int], share: float) -> float | None:
    """What a share of all took at most.

    Within a bucket it goes in a straight line, as Prometheus' ``histogram_quantile`` does, so that
    both say the same.

    Args:
        bounds: upper ends of the buckets, µs.
        counts: per bucket; one more than bounds, for what lies beyond.
        share: above 0, up to 1.

    Returns:
        µs; None without any request; the last bound when it lies beyond.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    before, low = 0, 0
    for bound, count in zip(bounds, counts, strict=False):  # but for the bucket without an end
        if before + count >= rank:
            return low + (bound - low) * (rank - before) / count
        before, low = before + count, bound
    return float(low)


def slow(bounds: Sequence[int], counts: Sequence[int]) -> int:
    """How many took longer than ``SLOW_US``, to the bucket that has it as its end or within."""
    within = sum(1 for bound in bounds if bound <= SLOW_US)
    return sum(counts[within:])


def minus(now: Sequence[int], before: Sequence[int]) -> list[int]:
    """What came since; everything when nothing is known of before.

    Args:
        now: counts.
        before: earlier ones of the same server; empty for none.
    """
    if len(before) != len(now):
        return list(now)
    return [max(0, later - earlier) for later, earlier in zip(now, before, strict=True)]


def cumulative(bounds: Sequence[int], counts: Sequence[int]) -> list[tuple[str, float]]:
    """For an exposition: bounds in seconds as text, and how many took that long at most."""
    names = [*(repr(bound / 1e6) for bound in bounds), "+Inf"]
    total, rows = 0, []
    for name, count in zip(names, counts, strict=True):
        total += count
        rows.append((name, float(total)))
    return rows
