"""A script is its seed's, has what its rates promise, and lets the last server live."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.script import (
    COOL_DOWN_S,
    EVERYTHING,
    QUIET_SHARE,
    RATES,
    RESTARTS,
    TIER_RATES,
    Rate,
    Script,
    draw,
    restarts_server,
    with_tiers,
)
from tests.chaos.verdict import (
    ENGINE_KILLS_PER_MINUTE,
    PORTER_KILLS_PER_MINUTE,
    SERVER_KILLS_PER_MINUTE,
)

KILLS = ("kill_server", "kill_server_twice", "kill_server_past_stopped_engine")


def test_a_seed_is_a_script() -> None:
    assert draw(7, 120) == draw(7, 120)
    assert draw(7, 120) != draw(8, 120)


@pytest.mark.parametrize("minutes", [1, 2, 10])
def test_rates_that_are_asked_for_are_kept(minutes: int) -> None:
    """By every seed: one that draws fewer makes a run of `.ci/run` invalid."""
    for seed in range(200):
        count = Counter(event.kind for event in draw(seed, minutes * 60))
        engines = count["kill_engine"] + count["kill_engine_at_a_point"]
        assert engines >= ENGINE_KILLS_PER_MINUTE * minutes, seed
        assert sum(count[kind] for kind in KILLS) >= SERVER_KILLS_PER_MINUTE * minutes, seed
        for kind, rate in RATES.items():
            assert abs(count[kind] - rate.per_minute * minutes) < 1, (seed, kind)


@pytest.mark.parametrize("minutes", [1, 2, 20])
def test_with_tiers_porters_are_hit_on_top(minutes: int) -> None:
    """By every seed; half of the kills may find none that lives."""
    for seed in range(100):
        events = draw(seed, minutes * 60, with_tiers(EVERYTHING))
        ours = [event for event in events if event.kind in TIER_RATES]
        kills = sum(event.kind == "kill_porter" for event in ours)
        assert kills >= 2 * PORTER_KILLS_PER_MINUTE * minutes, seed
        assert sum(event.kind == "stop_porter" for event in ours) >= minutes, seed
        others = [(one.at_s, one.kind, one.target) for one in draw(seed, minutes * 60)]
        assert [(one.at_s, one.kind, one.target) for one in events if one not in ours] == others, (
            seed
        )
    assert with_tiers(RESTARTS) is RESTARTS


def test_the_last_server_lives_and_has_the_full_arena() -> None:
    events = draw(3, 600)
    assert events == sorted(events, key=lambda event: event.at_s)
    deaths = [event for event in events if restarts_server(event.kind)]
    assert deaths[-1].at_s <= 600 * (1 - QUIET_SHARE)
    assert deaths[-1].arena == EVERYTHING.full_arena
    assert len({event.arena for event in deaths}) > 2
    assert events[-1].at_s <= 600 - COOL_DOWN_S


def test_durations_are_within_their_bounds() -> None:
    for event in draw(4, 600):
        low, high = RATES[event.kind].seconds
        assert low <= event.seconds <= high


def test_other_scripts() -> None:
    events = draw(1, 60, RESTARTS)
    assert {(event.kind, event.arena) for event in events} == {
        ("kill_server_past_stopped_engine", "1M")
    }
    assert len(events) == 9
    assert draw(1, 60, Script({"kill_engine": Rate(0.0)}, ("1M",), "1M")) == []
