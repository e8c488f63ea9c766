"""Medians and ratios of what a run took down.

Purpose: rates are compared round by round, because the machine's speed drifts more between rounds
than the methods differ within one. Must not know: processes, targets. Runs in: the benchmark's
process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

PLAIN = ("copyto", "memmove")
"""The plain copies that a transfer is held against."""


@dataclass(frozen=True)
class Transfer:
    """One direction under one condition.

    Attributes:
        gbps: median rate of the transfers, 1e9 bytes per second.
        memcpy_gbps: median rate of the faster plain copy of the same pages.
        memcpy_method: which that was.
        ratio: median over the rounds of transfer rate to that copy's rate.
        ratio_low: the lower quartile of those.
    """

    gbps: float
    memcpy_gbps: float
    memcpy_method: str
    ratio: float
    ratio_low: float


def transfer(seconds: Mapping[str, Sequence[float]], direction: str, num_bytes: int) -> Transfer:
    """Judges one direction.

    Args:
        seconds: times by name, one per round: ``direction`` and ``{direction}_{method}`` for each
            plain copy.
        direction: ``store`` or ``retrieve``.
        num_bytes: bytes that each round moved.

    Returns:
        Medians over the rounds.

    Raises:
        ValueError: no rounds, or lists of unequal length.
    """
    moved = seconds[direction]
    plain = {method: seconds[f"{direction}_{method}"] for method in PLAIN}
    if not moved or any(len(times) != len(moved) for times in plain.values()):
        raise ValueError(f"{direction}: every round needs one time of each method")
    fastest = min(PLAIN, key=lambda method: median(plain[method]))
    ratios = [copy_s / move_s for copy_s, move_s in zip(plain[fastest], moved, strict=True)]
    return Transfer(
        gbps=num_bytes / median(moved) / 1e9,
        memcpy_gbps=num_bytes / median(plain[fastest]) / 1e9,
        memcpy_method=fastest,
        ratio=median(ratios),
        ratio_low=quantiles(ratios, n=4)[0] if len(ratios) > 1 else ratios[0],
    )


@dataclass(frozen=True)
class Latency:
    """One kind of round trip.

    Attributes:
        p50_ms: median.
        p99_ms: 99th percentile; on a shared machine mostly the scheduler's.
        count: samples.
    """

    p50_ms: float
    p99_ms: float
    count: int


def latency(times_ms: Sequence[float]) -> Latency:
    """Sums up round trips.

    Args:
        times_ms: one per call.

    Returns:
        Their percentiles.

    Raises:
        ValueError: fewer than two samples.
    """
    if len(times_ms) < 2:
        raise ValueError("percentiles need at least two samples")
    return Latency(
        p50_ms=median(times_ms),
        p99_ms=quantiles(times_ms, n=100, method="inclusive")[98],
        count=len(times_ms),
    )
