"""What a script counts, STATS, /metrics and the dashboard say agrees to the last chunk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.namespace import fingerprint
from server import asking
from server.web.names import place
from server.web.watch import FRESH_S
from tests.server.web.pageserver import Pages, serving
from tests.server.web.traffic import Script, scripted
from tests.wire.client import make_keys, make_namespace
from tests.wire.process import ROOT, ServerProcess, wait_until

# What a script counts, by the name that STATS has for it.
COUNTS = {
    "lookups": "lookups",
    "asked": "lookup_chunks",
    "hit": "hit_chunks",
    "loaded": "retrieved_chunks",
    "stored": "stored_chunks",
    "stores": "stores_answered",
    "published": "published_chunks",
    "copied_bytes": "copied_bytes",
    "requested_tokens": "requested_tokens",
    "hit_tokens": "hit_tokens_l1",
    "loaded_tokens": "loaded_tokens",
}
GAUGES = ("chunks", "leases", "sessions", "namespaces", "slots_held", "arena_bytes", "stores")


@pytest.fixture
def server(short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    tenant = fingerprint(make_namespace(model="some/model-0")).hex()
    sizes = ("--l1-size", "8M", "--extent-size", "1M", "--quota", f"namespace/{tenant}=2M:6M")
    with ServerProcess(short_dir, shm_dir / "a", *sizes) as made:
        yield made


@pytest.fixture
def pages(server: ServerProcess) -> Iterator[Pages]:
    with serving(server.side_path) as (made, _):
        yield made


def test_everybody_counts_the_same(server: ServerProcess, pages: Pages) -> None:
    scripts = [
        scripted(server, make_namespace(model=f"some/model-{number}")) for number in range(2)
    ]
    try:
        for number, script in enumerate(scripts):
            script.play(prompts=9, seed=1 + 100 * number)
        time.sleep(FRESH_S + 0.1)  # the pages may show what is a second old
        stats = asking.stats(server.side_path, 10)
        metrics, status = pages.metrics(), pages.json("/api/status")
        for own, name in COUNTS.items():
            expected = sum(getattr(script.counted, own) for script in scripts)
            assert expected > 0, own
            metric = placed_as(name)
            told = (stats[name], metrics[metric], status["stats"][name])
            assert told == (expected,) * 3, name
        for name in GAUGES:
            assert stats[name] == metrics[f"kvkeep_{name}"] == status["stats"][name], name
        assert stats["lookup_chunks"] > stats["hit_chunks"] > stats["retrieved_chunks"]
        check_fill(server, stats, metrics, status)
        check_rows(scripts, metrics, status["status"])
        check_command(server, stats)
    finally:
        for script in scripts:
            script.engine.close()


def placed_as(name: str) -> str:
    """What a counter of STATS is called in /metrics."""
    placed = place(name)
    assert placed is not None
    assert placed.is_counter
    labels = f'{{{placed.label}="{placed.value}"}}' if placed.label else ""
    return f"{placed.family}_total{labels}"


def check_fill(
    server: ServerProcess,
    stats: dict[str, int],
    metrics: dict[str, float],
    status: dict[str, Any],
) -> None:
    """How full L1 is: one figure, wherever it is read."""
    fill = stats["arena_held_bytes"]
    assert 0 < fill <= stats["arena_used_bytes"] <= stats["arena_bytes"]
    assert metrics["kvkeep_arena_held_bytes"] == status["stats"]["arena_held_bytes"] == fill
    assert sum(row["bytes"] for row in status["status"]["namespaces"]) == fill
    for command in ("status", "top --once --interval 0.2"):
        l1 = asked(server, command)["l1"]
        assert (l1["held_bytes"], l1["capacity_bytes"]) == (fill, stats["arena_bytes"]), command


def check_rows(scripts: list[Script], metrics: dict[str, float], status: dict[str, Any]) -> None:
    """Each engine's own counts, those of its namespace, and the histogram's number of LOOKUPs."""
    lookups = sum(script.counted.lookups for script in scripts)
    assert metrics['kvkeep_request_seconds_count{op="LOOKUP"}'] == lookups
    rows = {row["instance"]: row for row in status["engines"] if row["state"] == "serving"}
    assert len(rows) == len(scripts)
    for script in scripts:
        row = rows[script.engine.instance.hex()]
        assert row["requested_chunks"] == script.counted.asked
        assert row["hit_chunks"] == script.counted.hit
        labels = (
            f'{{client="tests",engine="{script.engine.instance.hex()[:12]}",pid="{row["pid"]}"}}'
        )
        assert metrics[f"kvkeep_engine_requested_chunks_total{labels}"] == script.counted.asked
        assert metrics[f"kvkeep_engine_hit_chunks_total{labels}"] == script.counted.hit
    own = {row["name"]: row for row in status["namespaces"]}["some/model-0"]
    labels = f'{{kind="namespace",tenant="{own["fingerprint"]}",tier="l1"}}'
    assert metrics[f"kvkeep_quota_held_bytes{labels}"] == own["bytes"] > 0
    assert metrics[f"kvkeep_quota_limit_bytes{labels}"] == 6 << 20
    held = {row["name"]: row["chunks"] for row in status["namespaces"]}
    assert sum(held.values()) == metrics["kvkeep_chunks"]
    assert held.keys() == {"some/model-0", "some/model-1"}


def check_command(server: ServerProcess, stats: dict[str, int]) -> None:
    """``status --json`` and ``top --json`` say the same."""
    expected = {
        "requested_chunks": stats["lookup_chunks"],
        "hit_chunks": stats["hit_chunks"],
        "retrieved_chunks": stats["retrieved_chunks"],
        "published_chunks": stats["published_chunks"],
    }
    tokens = ("requested_tokens", "loaded_tokens")
    places = [name for name in stats if name.startswith("hit_tokens_")]
    expected |= {name: stats[name] for name in (*tokens, *places)}
    for command in ("status", "top --once --interval 0.2"):
        assert asked(server, command)["hits"] == expected, command


def test_hits_are_told_by_the_tier_that_had_them(short_dir: Path, shm_dir: Path) -> None:
    """One prompt has left L1 and comes from below, another is still there."""
    below = ("--l2", f"disk:{short_dir}/l2?size=64M", "--promote-deadline", "20")
    sizes = ("--l1-size", "2M", "--extent-size", "1M", *below)
    with ServerProcess(short_dir, shm_dir / "a", *sizes) as server:
        script = scripted(server)
        engine, tokens = script.engine, script.engine.namespace.chunk_tokens
        try:
            chains = [make_keys(seed, 12) for seed in range(1, 15)]
            for number, keys in enumerate(chains):
                script.save(keys, [(number + page) % engine.num_pages for page in range(12)])
                assert wait_until(lambda: written(server) >= script.counted.copied_bytes, 20)
            first = engine.lookup(chains[0])
            assert first.pending
            assert script.await_rest() == 12
            assert script.load(chains[-1]) == 12
            stats = asking.stats(server.side_path, 10)
            rows = {row["pid"]: row for row in asked(server, "status")["engines"]}
            own = rows[os.getpid()]
            assert (own["requested_chunks"], own["hit_chunks"]) == (24, stats["hit_chunks"])
            told = {name: value for name, value in stats.items() if "_tokens" in name}
            assert told == {
                "requested_tokens": 24 * tokens,
                "hit_tokens_l1": (12 + first.ready) * tokens,
                "hit_tokens_disk": (12 - first.ready) * tokens,
                "loaded_tokens": 24 * tokens,
            }
            check_command(server, stats)
        finally:
            engine.close()


def written(server: ServerProcess) -> int:
    """Bytes that the tier was given."""
    return asking.stats(server.side_path, 10).get("tier_disk_put_bytes", 0)


def asked(server: ServerProcess, words: str) -> dict[str, Any]:
    """What a command says for programs."""
    command = [sys.executable, "-m", "server", *words.split(), "--json", "--endpoint", server.url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=30, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found
