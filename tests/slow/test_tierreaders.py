"""What measures the tiers is judged by its targets, and not at all where it was the short run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.slow.figure import Figure
from tests.slow.tierreaders import read_beside_tier, read_disk

DISK: dict[str, Any] = {
    "values": 1700,
    "value_bytes": 4 << 20,
    "median_gb_s": {"fio write": 3.5, "put": 3.1, "fio read": 1.6, "get": 1.4},
    "put_to_fio": [0.9, 0.8],
    "get_to_fio": [0.85, 0.95],
    "median_put_to_fio": 0.85,
    "median_get_to_fio": 0.9,
}
ROUND = {
    "moved_mb_s": 600.0,
    **{f"{arm}_p50_us": 100.0 for arm in ("idle", "loaded", "tier")},
    **{f"{arm}_p99_us": 400.0 for arm in ("idle", "loaded", "tier")},
    "p50_to_idle": 9.0,
    "p99_to_idle": 9.0,
    "p50_to_loaded": 1.5,
    "p99_to_loaded": 3.0,
}


def missed(figures: dict[str, Figure]) -> set[str]:
    return {name for name, figure in figures.items() if figure.met is False}


def test_a_disk_as_fast_as_it_should_be() -> None:
    figures = read_disk(DISK, quick=False)
    assert not missed(figures)
    assert figures["put to fio write, median"].target == ">= 0.85"
    assert figures["put to fio write, by round"].value == "0.90 0.80"
    assert figures["get, GB/s"].value == 1.4


@pytest.mark.parametrize(("way", "name"), [("put", "put to fio write"), ("get", "get to fio read")])
def test_a_disk_that_is_slower(way: str, name: str) -> None:
    slower = {**DISK, f"median_{way}_to_fio": 0.849}
    assert missed(read_disk(slower, quick=False)) == {f"{name}, median"}
    assert not missed(read_disk(slower, quick=True))


def test_nothing_moved_is_no_measurement() -> None:
    assert missed(read_disk({**DISK, "values": 0}, quick=True)) == {"bytes of a round"}


def test_a_lookup_beside_a_tier_is_judged_by_the_same_load_without_one() -> None:
    figures = read_beside_tier([ROUND] * 10, quick=False)
    assert not missed(figures)
    judged = {name: figure.target for name, figure in figures.items() if figure.target}
    assert judged["p50 to the same load without a tier"] == "<= 1.5"
    assert judged["p99 to the same load without a tier"] == "<= 3.0"
    assert figures["p99 to an idle server"].value == 9.0
    assert figures["p50 tier, µs"].value == 100.0


@pytest.mark.parametrize(
    ("rounds", "names"),
    [
        ([{**ROUND, "p50_to_loaded": 1.51}] * 10, {"p50 to the same load without a tier"}),
        ([{**ROUND, "p99_to_loaded": 3.01}] * 10, {"p99 to the same load without a tier"}),
        ([ROUND] * 9, {"rounds"}),
        ([*([ROUND] * 9), {**ROUND, "moved_mb_s": 0.0}], {"least moved in a round, MB/s"}),
    ],
)
def test_a_lookup_that_suffers(rounds: list[dict[str, float]], names: set[str]) -> None:
    assert missed(read_beside_tier(rounds, quick=False)) == names


def test_one_bad_round_decides_nothing() -> None:
    rounds = [*([ROUND] * 9), {**ROUND, "p99_to_loaded": 50.0}]
    assert not missed(read_beside_tier(rounds, quick=False))


def test_the_short_run_is_told_and_not_judged() -> None:
    assert not missed(read_beside_tier([{**ROUND, "p99_to_loaded": 50.0}], quick=True))
