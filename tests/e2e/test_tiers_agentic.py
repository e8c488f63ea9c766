"""agentic-144 with a quarter of its working set in L1: tiers give back what a small L1 loses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("lmdb")
pytest.importorskip("xxhash")

from adapter.conformance.agentic.rig import SETTINGS
from tests.tiers import losing, stores
from tests.tiers.agentic import AS_SHIPPED, SAMPLE, SLOW_BUT_WHOLE, WHOLE, Agentic
from tests.tiers.rig import PATIENT, counters
from tests.wire.process import ServerProcess, wait_until

pytestmark = pytest.mark.torch
REASONS = ("cold", "evicted", "incomplete", "deadline", "corrupt", "tier_error", "no_room")
SIZES = [
    pytest.param(SAMPLE, id="sample"),
    pytest.param(WHOLE, id="whole", marks=pytest.mark.slow),
]
FEW = 6
"""Blocks: 0.002 of the whole workload."""

AS_LONG_AS_THE_SERVER = {**SETTINGS, "TRTLLM_KVKEEP_QUERY_BUDGET_MS": "2000"}
"""The engine waits for longer than the deadline, so that it is the server's that counts."""


def misses(server: ServerProcess) -> dict[str, int]:
    """Chunks that were asked for and not found, by reason."""
    found = counters(server)
    return {one: found[f"miss_chunks_{one}"] for one in REASONS if f"miss_chunks_{one}" in found}


def calm(server: ServerProcess, tier: str) -> None:
    """Waits until a tier has all that it was to be given.

    Between two requests of one agent people think for longer than that.
    """
    assert wait_until(lambda: losing.is_idle(server, tier), 30.0, 0.002), counters(server)


def test_without_a_tier_it_hits_what_an_independent_count_says(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    with WHOLE.launch(short_dir, shm_dir / "a") as server:
        result = WHOLE.play(server.url, tmp_path / "model", SETTINGS)
    expected = WHOLE.counted()
    total = sum(one.num_blocks for one in result.played.seen)
    assert sum(expected) < 0.7 * sum(WHOLE.unlimited()), "such an L1 is too small for it"
    assert abs(result.ratio - sum(expected) / total) <= 0.002


@pytest.mark.parametrize("agentic", SIZES)
def test_with_a_disk_and_time_it_hits_what_an_unlimited_cache_does(
    short_dir: Path, shm_dir: Path, tmp_path: Path, agentic: Agentic
) -> None:
    url = f"disk:{tmp_path}/tier?size=64M"
    model = tmp_path / "model"
    with agentic.launch(short_dir, shm_dir / "a", "--l2", url, *PATIENT, at_exit="keep") as server:
        result = agentic.play(server.url, model, SLOW_BUT_WHOLE)
        assert result.hits == agentic.unlimited(), misses(server)
        again = agentic.play(server.url, model, SLOW_BUT_WHOLE)
        assert again.hits == agentic.whole(), misses(server)
        server.kill()
    shutil.rmtree(shm_dir / "a")  # a reboot of the host
    with agentic.launch(short_dir, shm_dir / "a", "--l2", url, *PATIENT) as server:
        assert agentic.play(server.url, model, SLOW_BUT_WHOLE).hits == agentic.whole()


@pytest.mark.parametrize("agentic", SIZES)
def test_with_a_disk_as_it_is_shipped_each_miss_has_a_reason(
    short_dir: Path, shm_dir: Path, tmp_path: Path, agentic: Agentic
) -> None:
    url = f"disk:{tmp_path}/tier?size=64M"
    with agentic.launch(short_dir, shm_dir / "a", "--l2", url) as server:
        result = agentic.play(server.url, tmp_path / "model", AS_SHIPPED)
        found = misses(server)
    total = sum(one.num_blocks for one in result.played.seen)
    print(f"ratio {result.ratio:.4f}, without a tier {sum(agentic.counted()) / total:.4f}, {found}")
    assert sum(agentic.counted()) <= sum(result.hits) + FEW
    assert all(hit <= most for hit, most in zip(result.hits, agentic.unlimited(), strict=True))
    assert sum(found.values()) > 0


@pytest.mark.parametrize("agentic", SIZES)
@pytest.mark.parametrize("kind", ["mooncake", "valkey"])
def test_what_one_server_stored_another_one_hits(
    short_dir: Path, shm_dir: Path, tmp_path: Path, kind: str, agentic: Agentic
) -> None:
    """Each has an L1 of a quarter; the second one begins with an empty one."""
    model = tmp_path / "model"
    with stores.opened(kind, tmp_path / "store") as store:
        more, tier = ("--l2", store.url, *PATIENT), store.tier
        with (
            agentic.launch(short_dir / "a", shm_dir / "a", *more) as one,
            agentic.launch(short_dir / "b", shm_dir / "b", *more) as other,
        ):
            result = agentic.play(one.url, model, SLOW_BUT_WHOLE, lambda done: calm(one, tier))
            assert result.hits == agentic.unlimited(), misses(one)
            second = agentic.play(other.url, model, SLOW_BUT_WHOLE)
            found = counters(other)
            print(f"{kind}: {result.ratio:.4f} where it was stored, {second.ratio:.4f} beside it")
            assert second.hits == agentic.whole(), misses(other)
            assert found[f"tier_{tier}_hit_chunks"] >= sum(agentic.whole()) // 4
            # The block with a prompt's last token is never offered: it is computed again.
            assert found.get("stored_chunks", 0) <= len(second.hits)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "name"), stores.CASES, ids=stores.CASE_IDS)
def test_a_store_that_is_lost_and_comes_back_ends_no_engine(
    short_dir: Path, shm_dir: Path, tmp_path: Path, kind: str, name: str
) -> None:
    model = tmp_path / "model"
    requests = len(WHOLE.workload.order())
    with (
        stores.opened(kind, tmp_path / "store") as store,
        WHOLE.launch(short_dir, shm_dir / "a", "--l2", store.url, *losing.DEADLINE) as server,
    ):
        loss = store.losses[name]

        def after(done: int) -> None:
            if done == requests // 3:
                loss.begin()
            elif done == requests * 2 // 3:
                loss.end()

        result = WHOLE.play(server.url, model, AS_LONG_AS_THE_SERVER, after)
        print(f"{kind} {name}: {result.ratio:.4f}, slowest {result.slowest_query_s:.2f} s")
        assert result.slowest_query_s < losing.DEADLINE_S + losing.SLACK_S
        assert all(hit <= most for hit, most in zip(result.hits, WHOLE.unlimited(), strict=True))
        assert wait_until(lambda: losing.is_up(server, store.tier), losing.HEAL_S, 0.1)
        before = losing.hit_chunks(server, store.tier)
        WHOLE.play(server.url, model, AS_LONG_AS_THE_SERVER)
        assert losing.hit_chunks(server, store.tier) > before, misses(server)
