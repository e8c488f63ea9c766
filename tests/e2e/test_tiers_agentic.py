"""agentic-144 with a quarter of its working set in L1: a disk gives back what a small L1 loses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("lmdb")
pytest.importorskip("xxhash")

from adapter.conformance.agentic.rig import SETTINGS
from tests.tiers import agentic
from tests.tiers.rig import PATIENT, counters
from tests.wire.process import ServerProcess

pytestmark = pytest.mark.torch
REASONS = ("cold", "evicted", "incomplete", "deadline", "corrupt", "tier_error", "no_room")


def misses(server: ServerProcess) -> dict[str, int]:
    """Chunks that were asked for and not found, by reason."""
    found = counters(server)
    return {one: found[f"miss_chunks_{one}"] for one in REASONS if f"miss_chunks_{one}" in found}


def test_without_a_tier_it_hits_what_an_independent_count_says(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    with agentic.launch(short_dir, shm_dir / "a") as server:
        result = agentic.play(server.url, tmp_path / "model", SETTINGS)
    expected = agentic.counted()
    total = sum(one.num_blocks for one in result.played.seen)
    assert sum(expected) < 0.7 * sum(agentic.unlimited()), "such an L1 is too small for it"
    assert abs(result.ratio - sum(expected) / total) <= 0.002


def test_with_a_disk_and_time_it_hits_what_an_unlimited_cache_does(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    url = f"disk:{tmp_path}/tier?size=64M"
    model = tmp_path / "model"
    with agentic.launch(short_dir, shm_dir / "a", "--l2", url, *PATIENT, at_exit="keep") as server:
        result = agentic.play(server.url, model, agentic.SLOW_BUT_WHOLE)
        assert result.hits == agentic.unlimited(), misses(server)
        again = agentic.play(server.url, model, agentic.SLOW_BUT_WHOLE)
        whole = [
            (one.num_tokens - 1) // agentic.WORKLOAD.block_tokens for one in result.played.seen
        ]
        assert again.hits == whole, misses(server)
        server.kill()
    shutil.rmtree(shm_dir / "a")  # a reboot of the host
    with agentic.launch(short_dir, shm_dir / "a", "--l2", url, *PATIENT) as server:
        assert agentic.play(server.url, model, agentic.SLOW_BUT_WHOLE).hits == whole


def test_with_a_disk_as_it_is_shipped_each_miss_has_a_reason(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    url = f"disk:{tmp_path}/tier?size=64M"
    with agentic.launch(short_dir, shm_dir / "a", "--l2", url) as server:
        result = agentic.play(server.url, tmp_path / "model", agentic.AS_SHIPPED)
        found = misses(server)
    total = sum(one.num_blocks for one in result.played.seen)
    print(f"ratio {result.ratio:.4f}, without a tier {sum(agentic.counted()) / total:.4f}, {found}")
    assert sum(agentic.counted()) / total <= result.ratio + 0.002
    assert all(hit <= most for hit, most in zip(result.hits, agentic.unlimited(), strict=True))
    assert sum(found.values()) > 0
