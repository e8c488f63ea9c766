"""Figures and verdicts of what the host's programs write: schedules, kit, agents, adapter.

Knows the formats of those documents, nothing of how they come about. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.slow.figure import Figure

MIN_SCHEDULES = 2000
MIN_PER_MODE = 200

AGENTIC = {
    "blocks": 3096,
    "hits": 2684,
    "ratio": 0.8669,
    "ttft_speedup_modelled": 6.545,
    "restart_ratio": 1.0,
    "bit_exact": True,
}
"""What arithmetic says of twelve agents and twelve turns."""

AGENTIC_PER_TURN = [
    *(0.733, 0.625, 0.727, 0.786, 0.824, 0.850),
    *(0.870, 0.885, 0.897, 0.906, 0.914, 0.921),
]
ANSWERS_RATIO = 0.952
MAX_BURST_US = 300
"""Thread CPU of all but one in a hundred of the loop's bursts (design rule 9)."""

TARGET_LENGTH_RATIO = 1.5
"""A doubled prompt: 1 is none of it looked at, 2 is all; between, a busy machine has its room."""


HOOK_LIMIT_MS = 50

LAYERWISE_GAIN, LAYERWISE_HIDDEN = 1.3, 0.5
"""Of loading by layer: the gain where computing takes as long as loading, and the share of the load
that computing of twice its length hides. Two cores have no room for all of it."""


def exactly(value: Any, wanted: Any) -> Figure:
    """A figure that must be what it is.

    Args:
        value: measured.
        wanted: the only right one.
    """
    return Figure(value, str(wanted), value == wanted)


def at_least(value: float, bound: float) -> Figure:
    """A figure with a lower bound.

    Args:
        value: measured.
        bound: least that is right.
    """
    return Figure(value, f">= {bound}", value >= bound)


def read_schedules(
    document: Mapping[str, Any], quick: bool, per_mode: int = MIN_PER_MODE
) -> dict[str, Figure]:
    """Of ``adapter.conformance.schedules --json``.

    Args:
        document: as it wrote it.
        quick: whether fewer were played.
        per_mode: fewest of each mode; with another than the default, four times as many in all.
    """
    errors, least = document["errors"], 1 if quick else per_mode
    total = MIN_SCHEDULES if per_mode == MIN_PER_MODE else 4 * per_mode
    figures = {
        "schedules": at_least(document["schedules"], 4 if quick else total),
        "errors": exactly(len(errors), 0),
    }
    for number, line in enumerate(errors[:10]):
        figures[f"error {number}"] = Figure(line)
    for mode, tally in document["modes"].items():
        figures[f"{mode}: schedules"] = at_least(tally["schedules"], least)
        figures[f"{mode}: answers compared"] = at_least(tally["compared"], 1)
        figures[f"{mode}: tokens loaded"] = at_least(tally["loaded_tokens"], 1)
        figures[f"{mode}: prompt tokens"] = Figure(tally["prompt_tokens"])
        figures[f"{mode}: cancelled"] = Figure(tally["cancelled"])
    return figures


def read_kit(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Of ``python -m adapter conformance --json``.

    Args:
        document: as it wrote it.
    """
    rules = document["rules"]
    held = sum(rule["outcome"] == "held" for rule in rules)
    figures = {
        "rules": at_least(len(rules), 1),
        "held": at_least(held, 1),
        "broken": exactly(document["broken"], 0),
    }
    for rule in rules:
        if rule["outcome"] != "held":
            name = f"{rule['source']} {rule['outcome']}: {rule['rule']}"
            figures[name] = Figure(rule["evidence"])
    return figures


def read_agentic(
    document: Mapping[str, Any], block_tokens: int = 32, token_kib: int = 128
) -> dict[str, Figure]:
    """Of ``build/agentic.json``.

    Args:
        document: as the benchmark wrote it.
        block_tokens: that it was to be run with; counts are the same with any.
        token_kib: KV of a token, likewise.
    """
    answers = document["answers_saved"]["ratio"]
    return {
        **{name: exactly(document[name], wanted) for name, wanted in AGENTIC.items()},
        "per turn": Figure(
            " ".join(f"{ratio:.3f}" for ratio in document["per_turn"]),
            "as computed",
            list(document["per_turn"]) == AGENTIC_PER_TURN,
        ),
        "answers saved too, ratio": Figure(
            answers, f"{ANSWERS_RATIO} rounded", round(answers, 3) == ANSWERS_RATIO
        ),
        "wrong": exactly(len(document["wrong"]), 0),
        "ttft_speedup_measured_load": Figure(document["ttft_speedup_measured_load"]),
        "tokens of a block": exactly(document["block_tokens"], block_tokens),
        "KV bytes per token": exactly(document["kv_bytes_per_token"], token_kib * 1024),
        "load bytes": Figure(document["load_bytes"]),
        "load GB/s": Figure(document["load_gb_per_s"]),
    }


def read_adapter(document: Mapping[str, Any], quick: bool) -> dict[str, Figure]:
    """Of ``tests.benchmarks.bench_adapter --json``.

    Args:
        document: as it wrote it.
        quick: whether fewer requests decoded.
    """
    ratio = document["ratio_of_doubled_length"]
    figures = {
        "active requests": at_least(document["active"], 1 if quick else 256),
        "ratio of doubled prompt length": Figure(
            round(ratio, 3), f"< {TARGET_LENGTH_RATIO}", ratio < TARGET_LENGTH_RATIO
        ),
    }
    for length, by_name in document["us_per_request_and_step"].items():
        figures[f"{length} tokens, us per request and step"] = Figure(round(by_name["total"], 3))
    return figures


def judge_hooks(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """What tests of hooks beside trouble told, with the verdicts of a machine with cores to spare.

    Args:
        figures: of the step; some of them times that include waits for a core.
    """
    judged, num_times = dict(figures), 0
    for name, figure in figures.items():
        if name.endswith((" hook p99.9, ms", " iteration p99.9, ms")):
            num_times += 1
            value = float(figure.value or 0.0)
            judged[name] = Figure(value, f"< {HOOK_LIMIT_MS}", value < HOOK_LIMIT_MS)
        elif name.endswith("loads failed after an offer"):
            judged[name] = exactly(figure.value, 0)
    return judged | {"times judged": Figure(num_times, "> 0", num_times > 0)}


def read_layerwise(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Of ``tests.benchmarks.bench_layerwise --json``.

    Args:
        document: as it wrote it.
    """
    figures = {
        "load bytes": Figure(document["load_bytes"]),
        "load GB/s": Figure(round(document["load_gb_per_s"], 1)),
    }
    for row in document["rows"]:
        ratio = row["compute_to_load"]
        gain, hidden = round(row["gain"], 3), round(row["hidden"], 3)
        figures |= {
            f"computing {ratio:g} of the load, {name}, ms": Figure(round(row[key], 2))
            for name, key in (
                ("nothing to load", "compute_ms"),
                ("whole pages", "whole_ms"),
                ("by layer", "by_layer_ms"),
            )
        }
        figures[f"computing {ratio:g} of the load, gain"] = (
            at_least(gain, LAYERWISE_GAIN) if ratio == 1 else Figure(gain)
        )
        figures[f"computing {ratio:g} of the load, hidden"] = (
            at_least(hidden, LAYERWISE_HIDDEN) if ratio == 2 else Figure(hidden)
        )
    return figures


def read_chaos(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Of ``tests.chaos --json``.

    Args:
        document: as it wrote it.
    """
    zero = ("wrong_bytes", "failed_offers", "failed_requests", "engine_deaths", "hangs", "leaks")
    told = (
        *("engine_kills", "server_kills", "copier_kills", "porter_kills", "stops"),
        *(
            "loads_verified",
            "chunks_verified",
            "tier_chunks",
            "hit_ratio",
            "rss_slope_mib_per_min",
            "seed",
            "minutes",
        ),
    )
    figures = {name: exactly(document[name], 0) for name in zero}
    figures |= {name: Figure(document[name]) for name in told}
    for kind in ("invalid", "wrong"):
        reasons = document[kind]
        figures[kind] = exactly(len(reasons), 0)
        figures |= {f"{kind} {at}": Figure(reason) for at, reason in enumerate(reasons)}
    troubles = document["trouble_list"][:10]
    return figures | {f"trouble {at}": Figure(text) for at, text in enumerate(troubles)}


def read_soak(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Of ``tests.soak --json``.

    Args:
        document: as it wrote it.
    """
    figures = {claim: Figure(held, "held", held) for claim, held in document["claims"].items()}
    minutes = document["minutes"]
    lookups = sum(one.get("lookups", 0) for one in minutes)
    by_minute = [one["lookup_p99_ms"] for one in minutes]
    burst_us = document["loop"]["loop_burst_p99_us"]
    return {
        **figures,
        "claims": at_least(len(document["claims"]), 6),
        "clients": at_least(document["clients"], 64),
        "LOOKUPs": at_least(lookups, 1),
        "LOOKUP p99 of the worst minute, ms": Figure(max(by_minute)),
        "LOOKUP p99 by the minute, ms": Figure(" ".join(str(p99) for p99 in by_minute)),
        "RssAnon slope, MiB a minute": Figure(document["rss_slope_mib_per_min"]),
        "loop burst p99, µs": Figure(burst_us, f"<= {MAX_BURST_US}", burst_us <= MAX_BURST_US),
    }
