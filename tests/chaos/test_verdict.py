"""A run that did too little shows nothing; one thing wrong is enough."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.verdict import judge, min_loads

GOOD: dict[str, Any] = {
    "engine_kills": 61,
    "server_kills": 20,
    "loads_verified": 50_000,
    "hit_ratio": 0.31,
    "wrong_bytes": 0,
    "failed_offers": 0,
    "failed_requests": 0,
    "engine_deaths": 0,
    "hangs": 0,
    "leaks": 0,
    "troubles": 0,
    "rss_slope_mib_per_min": 0.99,
}


def test_all_is_well() -> None:
    assert judge(GOOD, 10).held
    assert judge({**GOOD, "rss_slope_mib_per_min": -3.0}, 10).held


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("engine_kills", 59),
        ("server_kills", 19),
        ("loads_verified", 49_999),
        ("hit_ratio", 0.3),
        ("rss_slope_mib_per_min", None),
    ],
)
def test_too_little_is_invalid(name: str, value: Any) -> None:
    verdict = judge({**GOOD, name: value}, 10)
    assert len(verdict.invalid) == 1
    assert not verdict.wrong
    assert not verdict.held


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wrong_bytes", 1),
        ("failed_offers", 1),
        ("failed_requests", 1),
        ("engine_deaths", 1),
        ("hangs", 1),
        ("leaks", 1),
        ("troubles", 1),
        ("rss_slope_mib_per_min", 1.0),
    ],
)
def test_one_wrong_thing_is_enough(name: str, value: Any) -> None:
    verdict = judge({**GOOD, name: value}, 10)
    assert verdict.wrong == (
        (f"{name} {value}",) if name != "rss_slope_mib_per_min" else verdict.wrong
    )
    assert len(verdict.wrong) == 1
    assert not verdict.invalid
    assert not verdict.held


def test_a_run_with_tiers_has_to_use_and_to_hit_them() -> None:
    tiers = {**GOOD, "porter_kills": 10, "tier_chunks": 500}
    assert judge(tiers, 10, has_tiers=True).held
    for name, value in (("porter_kills", 9), ("tier_chunks", 499)):
        verdict = judge({**tiers, name: value}, 10, has_tiers=True)
        assert [one.split()[0] for one in verdict.invalid] == [name]
        assert not verdict.wrong
        assert judge({**tiers, name: value}, 10).held
    lower = {**tiers, "hit_ratio": 0.21}
    assert judge(lower, 10, has_tiers=True).held
    assert not judge(lower, 10).held
    assert not judge({**tiers, "hit_ratio": 0.2}, 10, has_tiers=True).held


def test_short_runs_need_less() -> None:
    assert (min_loads(10), min_loads(2)) == (50_000, 2000)
    short = {**GOOD, "engine_kills": 12, "server_kills": 4, "loads_verified": 2000}
    assert judge({**short, "rss_slope_mib_per_min": None}, 2).held
    assert judge({**short, "rss_slope_mib_per_min": 5.0}, 2).held
    assert not judge({**short, "server_kills": 3}, 2).held
