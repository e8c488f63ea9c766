"""Whole replays against counts that know nothing of the model: a set, and leaves by age."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.core.tiers.policy import Policy
from server.simulate.replay import run
from server.simulate.settings import UNLIMITED, Lower, Settings, Size
from server.simulate.traces import read
from tests.tiers.leaflru import LeafLru

DATA = Path(__file__).parent / "data"
CONVERSATION, SESSIONS = DATA / "conversation_first_200.jsonl", DATA / "sessions"
ALL = Settings(Size(UNLIMITED))
FAST = 1e6
"""GB/s at which nothing is late."""

Request = tuple[list[Any], int]
"""Ids of its blocks, and its tokens; read here without the reader under test."""


def mooncake(path: Path) -> list[Request]:
    rows = map(json.loads, path.read_text().splitlines())
    return [(row["hash_ids"], row["input_length"]) for row in rows]


def sessions(folder: Path) -> list[Request]:
    found: list[tuple[float, Request]] = []
    for path in sorted(folder.glob("*.json")):
        found += [
            (row["t"], ([(path.name, one) for one in row["hash_ids"]], row["in"]))
            for row in json.loads(path.read_text())["requests"]
        ]
    return [request for _, request in sorted(found, key=lambda one: one[0])]


def kept_for_ever(requests: list[Request], block_tokens: int, partial: bool) -> tuple[int, int]:
    """Hits and blocks with a set that forgets nothing."""
    seen: set[Any] = set()
    hits = blocks = 0
    for ids, tokens in requests:
        names = ids if partial else ids[: tokens // block_tokens]
        usable = len(names) if partial else (tokens - 1) // block_tokens
        held = next((at for at, one in enumerate(names) if one not in seen), len(names))
        hits, blocks = hits + min(held, usable), blocks + len(names)
        seen.update(names)
    return hits, blocks


def by_age(requests: list[Request], chunk_tokens: int, every: int, share: float) -> tuple[int, int]:
    """Hits and chunks of a cache of a part of all chunks that evicts leaves by age."""
    prompts = [
        (ids[: tokens * every // chunk_tokens][every - 1 :: every], (tokens - 1) // chunk_tokens)
        for ids, tokens in requests
    ]
    cache = LeafLru(int(len({one for names, _ in prompts for one in names}) * share))
    hits = sum(cache.ask(names, usable) for names, usable in prompts)
    return hits, sum(len(names) for names, _ in prompts)


def counted(document: dict[str, Any]) -> tuple[int, int]:
    return sum(document["hit_chunks"].values()), document["chunks"]


def disk(size: Size, policy: Policy = Policy.WRITE_THROUGH, gbps: float = FAST) -> Lower:
    return Lower("disk", False, size, policy, 1, gbps, gbps)


def store(gbps: float = FAST) -> Lower:
    return replace(disk(Size(UNLIMITED), gbps=gbps), name="store", is_shared=True)


# --- against independent counts -------------------------------------------------------------------


@pytest.mark.parametrize("partial", [False, True])
def test_an_unlimited_cache_hits_what_a_set_says(partial: bool) -> None:
    settings = replace(ALL, count_partial=partial)
    for path, requests, block in (
        (CONVERSATION, mooncake(CONVERSATION), 512),
        (SESSIONS, sessions(SESSIONS), 64),
    ):
        expected = kept_for_ever(requests, block, partial)
        assert counted(run(read([path]), settings)) == expected
        assert expected[0] > 0


@pytest.mark.parametrize("share", [0.5, 0.25, 0.1, 0.02])
@pytest.mark.parametrize("every", [1, 4])
def test_memory_alone_hits_what_leaves_by_age_say(share: float, every: int) -> None:
    settings = replace(ALL, l1=Size(0, share), chunk_blocks=every)
    for path, requests, block in (
        (CONVERSATION, mooncake(CONVERSATION), 512),
        (SESSIONS, sessions(SESSIONS), 64),
    ):
        expected = by_age(requests, block * every, every, share)
        assert counted(run(read([path]), settings)) == expected


def test_with_a_large_and_fast_disk_nothing_is_missed_that_was_ever_stored() -> None:
    unlimited = run(read([SESSIONS]), ALL)
    for policy in (Policy.WRITE_THROUGH, Policy.ON_EVICT):
        below = (disk(Size(UNLIMITED), policy),)
        settings = replace(ALL, l1=Size(0, 0.25), lower=below, one_by_one=True)
        document = run(read([SESSIONS]), settings)
        assert counted(document) == counted(unlimited)
        assert document["hit_chunks"]["disk"] > 0
        assert document["miss_chunks"]["evicted"] == 0


def test_many_requests_of_one_moment_evict_what_is_not_written_yet() -> None:
    settings = replace(ALL, l1=Size(0, 0.25), lower=(disk(Size(UNLIMITED), gbps=2.0),))
    document = run(read([SESSIONS]), settings)
    assert document["tiers"]["disk"]["dropped_bytes"] > 0
    assert document["miss_chunks"]["evicted"] > 0


def test_of_a_slow_disk_some_comes_too_late() -> None:
    settings = replace(ALL, l1=Size(0, 0.25), lower=(disk(Size(UNLIMITED), gbps=2.0),))
    late = run(read([SESSIONS]), replace(settings, deadline_s=0.05))
    patient = run(read([SESSIONS]), replace(settings, deadline_s=3600.0))
    assert late["miss_chunks"]["deadline"] > 0
    assert patient["miss_chunks"]["deadline"] == 0
    assert late["hit_ratio"] < patient["hit_ratio"]
    assert late["tiers"]["disk"]["promoted_bytes"] > 0


# --- nodes ----------------------------------------------------------------------------------------


def test_sessions_stay_on_their_node() -> None:
    spread = run(read([SESSIONS]), replace(ALL, nodes=3))
    assert counted(spread) == counted(run(read([SESSIONS]), ALL))


def test_what_wanders_finds_its_blocks_in_a_store_and_not_on_other_nodes_disks() -> None:
    wandering = replace(ALL, nodes=3, route="round-robin")
    alone = run(read([SESSIONS]), wandering)
    own = run(read([SESSIONS]), replace(wandering, lower=(disk(Size(UNLIMITED)),)))
    shared = run(read([SESSIONS]), replace(wandering, lower=(store(),)))
    unlimited = run(read([SESSIONS]), ALL)
    assert counted(alone) == counted(own)
    assert counted(own)[0] < counted(shared)[0] == counted(unlimited)[0]
    # What a node computes it writes, though another may have written it just before.
    assert shared["tiers"]["store"]["written_bytes"] >= unlimited["trace"]["working_set_bytes"]


def test_copies_are_other_users() -> None:
    one, three = run(read([SESSIONS]), ALL), run(read([SESSIONS]), replace(ALL, copies=3))
    assert counted(three) == tuple(3 * number for number in counted(one))
    assert three["requests"] == 3 * one["requests"]
    assert three["trace"] == one["trace"]
    assert three["rates"]["seconds"] == pytest.approx(one["rates"]["seconds"] * 5 / 3)


def test_two_runs_are_the_same() -> None:
    settings = replace(ALL, l1=Size(0, 0.2), lower=(disk(Size(0, 0.5), gbps=2.0),), nodes=2)
    assert run(read([SESSIONS]), settings) == run(read([SESSIONS]), settings)


def test_progress_is_told() -> None:
    told: list[int] = []
    run(read([CONVERSATION]), replace(ALL, copies=3), told.append)
    assert told == [0, 256, 512]


# --- the whole traces, which are not in the repository --------------------------------------------

WHOLE = os.environ.get("KV_TRACES", "")
needs_traces = pytest.mark.skipif(
    not WHOLE, reason="KV_TRACES names no folder with the public traces"
)


@needs_traces
@pytest.mark.parametrize(
    ("name", "changes", "ratio"),
    [
        ("conversation_trace.jsonl", {"count_partial": True}, 0.3664),
        ("conversation_trace.jsonl", {}, 0.3819),
        ("synthetic_trace.jsonl", {"count_partial": True}, 0.6396),
        ("synthetic_trace.jsonl", {}, 0.6594),
        ("agentic-claude-code", {}, 0.9534),
        ("agentic-claude-code", {"chunk_blocks": 4}, 0.9533),
    ],
)
def test_the_reference_ratios(name: str, changes: dict[str, Any], ratio: float) -> None:
    assert run(read([Path(WHOLE) / name]), replace(ALL, **changes))["hit_ratio"] == ratio


@needs_traces
def test_a_quarter_of_the_coding_sessions() -> None:
    folder = Path(WHOLE) / "agentic-claude-code"
    quarter = replace(ALL, l1=Size(0, 0.25))
    document = run(read([folder]), quarter)
    assert counted(document) == by_age(sessions(folder), 64, 1, 0.25)
    assert document["hit_ratio"] == pytest.approx(0.841, abs=0.002)
    disks = (disk(Size(UNLIMITED), gbps=2.0),)
    below = replace(quarter, lower=disks, deadline_s=30.0, one_by_one=True)
    assert run(read([folder]), below)["hit_ratio"] == 0.9534


@needs_traces
def test_an_hour_of_conversations_takes_less_than_a_minute() -> None:
    began = time.process_time()
    settings = replace(ALL, l1=Size(0, 0.1), lower=(disk(Size(0, 0.5), gbps=2.0),))
    document = run(read([Path(WHOLE) / "conversation_trace.jsonl"]), settings)
    assert document["requests"] == 12_031
    assert time.process_time() - began < 60
