"""Figures and verdicts of what measures the lower tiers.

Knows the formats of those documents, nothing of how they come about. Pure functions.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.slow.figure import Figure
from tests.slow.readers import at_least

MIN_TO_FIO: Final = 0.85
MIN_ROUNDS: Final = 10
MOST_TO_LOADED: Final[Mapping[str, float]] = {"p50": 1.5, "p99": 3.0}


def read_disk(document: Mapping[str, Any], quick: bool) -> dict[str, Figure]:
    """Of ``tests.benchmarks.bench_disk --json``.

    Args:
        document: as it wrote it.
        quick: whether so little was written that its rates are none of the disk's.
    """
    figures = {}
    for way, theirs in (("put", "fio write"), ("get", "fio read")):
        ratio = document[f"median_{way}_to_fio"]
        name = f"{way} to {theirs}, median"
        figures[name] = Figure(ratio) if quick else at_least(ratio, MIN_TO_FIO)
        figures[f"{way} to {theirs}, by round"] = Figure(_row(document[f"{way}_to_fio"]))
    for name, rate in document["median_gb_s"].items():
        figures[f"{name}, GB/s"] = Figure(rate)
    bytes_moved = document["values"] * document["value_bytes"]
    return {**figures, "bytes of a round": at_least(bytes_moved, 1)}


def read_beside_tier(rounds: Sequence[Mapping[str, float]], quick: bool) -> dict[str, Figure]:
    """Of ``tests.benchmarks.bench_tiers --json``: medians over its rounds.

    What counts is the same load on the same machine with a tier and without; what an idle server
    answers is told beside it.

    Args:
        rounds: as it wrote them.
        quick: whether they were too few and too short to be judged.
    """
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    figures = {"rounds": at_least(len(rounds), 1 if quick else MIN_ROUNDS)}
    for cut, most in MOST_TO_LOADED.items():
        ratio = round(medians[f"{cut}_to_loaded"], 3)
        name = f"{cut} to the same load without a tier"
        figures[name] = Figure(ratio) if quick else Figure(ratio, f"<= {most}", ratio <= most)
        figures[f"{name}, by round"] = Figure(_row([one[f"{cut}_to_loaded"] for one in rounds]))
        figures[f"{cut} to an idle server"] = Figure(round(medians[f"{cut}_to_idle"], 3))
        for arm in ("idle", "loaded", "tier"):
            figures[f"{cut} {arm}, µs"] = Figure(round(medians[f"{arm}_{cut}_us"], 1))
    least = min(one["moved_mb_s"] for one in rounds)
    return {
        **figures,
        "moved by the tier, MB/s": Figure(round(medians["moved_mb_s"], 1)),
        "least moved in a round, MB/s": at_least(round(least, 1), 1),
    }


def _row(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)
