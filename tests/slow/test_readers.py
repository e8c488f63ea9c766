"""Documents of the host's programs are judged by every target of theirs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.slow.figure import Figure
from tests.slow.readers import (
    AGENTIC,
    AGENTIC_PER_TURN,
    judge_hooks,
    read_adapter,
    read_agentic,
    read_chaos,
    read_kit,
    read_layerwise,
    read_schedules,
    read_soak,
)

TALLY = {
    "schedules": 520,
    "requests": 5000,
    "cancelled": 9,
    "compared": 4000,
    "prompt_tokens": 100_000,
    "loaded_tokens": 50_000,
    "errors": [],
}
SCHEDULES: dict[str, Any] = {
    "schedules": 2080,
    "errors": [],
    "modes": {mode: dict(TALLY) for mode in ("auto", "sync", "async", "layerwise")},
}
KIT: dict[str, Any] = {
    "rules": [
        {"source": "§9.1", "rule": "r", "outcome": "held", "evidence": ""},
        {"source": "§9.2", "rule": "s", "outcome": "not observed", "evidence": "no chance"},
    ],
    "broken": 0,
}
AGENTS: dict[str, Any] = {
    **AGENTIC,
    "per_turn": AGENTIC_PER_TURN,
    "answers_saved": {"ratio": 0.9522},
    "wrong": [],
    "ttft_speedup_measured_load": 4.9,
    "block_tokens": 32,
    "kv_bytes_per_token": 131_072,
    "load_bytes": 1,
    "load_gb_per_s": 3.0,
}
ADAPTER: dict[str, Any] = {
    "active": 256,
    "ratio_of_doubled_length": 1.02,
    "us_per_request_and_step": {"16384": {"total": 1.5}, "32768": {"total": 1.53}},
}
CHAOS: dict[str, Any] = {
    **dict.fromkeys(("wrong_bytes", "failed_offers", "failed_requests"), 0),
    **dict.fromkeys(("engine_deaths", "hangs", "leaks"), 0),
    "engine_kills": 80,
    "server_kills": 25,
    "copier_kills": 20,
    "porter_kills": 0,
    "tier_chunks": 0,
    "stops": 40,
    "seed": 1,
    "loads_verified": 60_000,
    "chunks_verified": 300_000,
    "hit_ratio": 0.6,
    "minutes": 10,
    "rss_slope_mib_per_min": 0.1,
    "invalid": [],
    "wrong": [],
    "trouble_list": [],
}


LAYERWISE: dict[str, Any] = {
    "load_bytes": 1 << 28,
    "load_gb_per_s": 9.6,
    "rows": [
        {
            "compute_to_load": ratio,
            "compute_ms": 1.0,
            "whole_ms": 2.0,
            "by_layer_ms": 1.5,
            "hidden": hidden,
            "gain": gain,
        }
        for ratio, hidden, gain in ((0.5, 0.1, 1.0), (1.0, 0.1, 1.3), (2.0, 0.5, 1.0))
    ],
}


def missed(figures: dict[str, Figure]) -> set[str]:
    return {name for name, figure in figures.items() if figure.met is False}


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one value of it replaced."""
    made = copy.deepcopy(document)
    *way, last = path.split(".")
    place = made
    for step in way:
        place = place[step]
    place[last] = value
    return made


def test_what_is_as_it_should_be_misses_nothing() -> None:
    assert missed(read_schedules(SCHEDULES, quick=False)) == set()
    assert missed(read_kit(KIT)) == set()
    assert missed(read_agentic(AGENTS)) == set()
    assert missed(read_adapter(ADAPTER, quick=False)) == set()
    assert missed(read_chaos(CHAOS)) == set()
    assert missed(read_layerwise(LAYERWISE)) == set()


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("schedules", 1999, "schedules"),
        ("errors", ["a leak"], "errors"),
        ("modes.async.schedules", 199, "async: schedules"),
        ("modes.layerwise.loaded_tokens", 0, "layerwise: tokens loaded"),
        ("modes.sync.compared", 0, "sync: answers compared"),
    ],
)
def test_schedules_that_fall_short(path: str, value: Any, name: str) -> None:
    figures = read_schedules(changed(SCHEDULES, path, value), quick=False)
    assert missed(figures) == {name}


def test_errors_are_kept_in_words() -> None:
    figures = read_schedules(changed(SCHEDULES, "errors", ["seed 3: a leak"]), quick=False)
    assert figures["error 0"].value == "seed 3: a leak"


def test_fewer_schedules_do_for_a_trial() -> None:
    trial = changed(SCHEDULES, "schedules", 8)
    assert missed(read_schedules(trial, quick=True)) == set()


def test_on_devices_fewer_schedules_do() -> None:
    fewer = changed(SCHEDULES, "modes.async.schedules", 100)
    assert missed(read_schedules(changed(fewer, "schedules", 400), False, 100)) == set()
    assert missed(read_schedules(changed(fewer, "schedules", 399), False, 100)) == {"schedules"}
    fewest = changed(fewer, "modes.async.schedules", 99)
    assert missed(read_schedules(fewest, False, 100)) == {"async: schedules"}


def test_a_broken_rule_is_named() -> None:
    rules = [{"source": "§9.1", "rule": "r", "outcome": "broken", "evidence": "why"}]
    figures = read_kit({"rules": rules, "broken": 1})
    assert missed(figures) == {"held", "broken"}
    assert figures["§9.1 broken: r"].value == "why"


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("hits", 2683, "hits"),
        ("bit_exact", False, "bit_exact"),
        ("per_turn", AGENTIC_PER_TURN[::-1], "per turn"),
        ("answers_saved.ratio", 0.94, "answers saved too, ratio"),
        ("wrong", ["turn 3"], "wrong"),
        ("kv_bytes_per_token", 1, "KV bytes per token"),
        ("block_tokens", 256, "tokens of a block"),
    ],
)
def test_agents_that_find_less(path: str, value: Any, name: str) -> None:
    assert missed(read_agentic(changed(AGENTS, path, value))) == {name}


def test_agents_with_larger_blocks_and_smaller_tokens() -> None:
    larger = changed(changed(AGENTS, "block_tokens", 256), "kv_bytes_per_token", 1024)
    assert missed(read_agentic(larger, 256, 1)) == set()


def test_cost_that_follows_the_prompt() -> None:
    figures = read_adapter(changed(ADAPTER, "ratio_of_doubled_length", 1.9), quick=False)
    assert missed(figures) == {"ratio of doubled prompt length"}
    assert missed(read_adapter(changed(ADAPTER, "active", 16), quick=False)) == {"active requests"}
    assert missed(read_adapter(changed(ADAPTER, "active", 16), quick=True)) == set()


def test_hooks_are_judged_by_the_clock_on_the_wall() -> None:
    told = {
        "test_it: sync, hook p99.9, ms": Figure(20.6),
        "test_it: sync, iteration p99.9, ms": Figure(50.0),
        "test_it: sync, hook longest, ms": Figure(90.0),
        "test_it: sync, loads failed after an offer": Figure(0),
        "failed": Figure(0, "0", True),
    }
    figures = judge_hooks(told)
    assert missed(figures) == {"test_it: sync, iteration p99.9, ms"}
    assert figures["test_it: sync, hook p99.9, ms"].met is True
    told["test_it: sync, loads failed after an offer"] = Figure(1)
    assert "test_it: sync, loads failed after an offer" in missed(judge_hooks(told))
    assert figures["failed"] is told["failed"]
    assert figures["times judged"].value == 2
    assert missed(judge_hooks({"failed": told["failed"]})) == {"times judged"}


def test_layers_that_hide_too_little() -> None:
    slow = copy.deepcopy(LAYERWISE)
    slow["rows"][1]["gain"], slow["rows"][2]["hidden"] = 1.29, 0.49
    assert missed(read_layerwise(slow)) == {
        "computing 1 of the load, gain",
        "computing 2 of the load, hidden",
    }
    named = read_layerwise(LAYERWISE)
    assert named["computing 0.5 of the load, by layer, ms"].value == 1.5


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("wrong_bytes", 1, "wrong_bytes"),
        ("hangs", 1, "hangs"),
        ("invalid", ["hit_ratio 0.2"], "invalid"),
        ("wrong", ["troubles 1"], "wrong"),
    ],
)
def test_chaos_that_found_something(path: str, value: Any, name: str) -> None:
    figures = read_chaos(changed(CHAOS, path, value))
    assert missed(figures) == {name}
    told = {f"{path} 0": value[0]} if isinstance(value, list) else {}
    assert {key: figures[key].value for key in told} == told


SOAK: dict[str, Any] = {
    "clients": 64,
    "claims": {f"claim {number}": True for number in range(6)},
    "minutes": [{"lookups": 5, "lookup_p99_ms": 3.0}, {"lookups": 7, "lookup_p99_ms": 4.0}],
    "rss_slope_mib_per_min": 0.1,
    "loop": {"loop_burst_p99_us": 250},
}


def test_a_soak_is_judged_claim_by_claim() -> None:
    figures = read_soak(SOAK)
    assert all(figure.met is not False for figure in figures.values())
    assert figures["LOOKUPs"].value == 12
    assert figures["LOOKUP p99 of the worst minute, ms"].value == 4.0
    assert figures["LOOKUP p99 by the minute, ms"].value == "3.0 4.0"
    spoils: tuple[dict[str, Any], ...] = (
        {"claims": {"claim 0": False}},
        {"clients": 63},
        {"loop": {"loop_burst_p99_us": 301}},
        {"minutes": []},
    )
    for spoil in spoils:
        spoiled = {**copy.deepcopy(SOAK), **spoil}
        if spoil == {"minutes": []}:
            spoiled["minutes"] = [{"lookup_p99_ms": 0.0}]
        assert any(figure.met is False for figure in read_soak(spoiled).values()), spoil
