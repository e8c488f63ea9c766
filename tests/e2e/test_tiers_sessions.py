"""Recorded sessions of coding agents on a quarter of their L1; the traces are not in the tree.

``KV_TRACES`` names a folder with ``trace_*.json`` files, in it or below: docs/scale.md says which
are expected, and where they are from.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.tiers import sessions, stores
from tests.tiers.rig import PATIENT, counters
from tests.wire.process import ServerProcess, wait_until

TRACES = os.environ.get("KV_TRACES", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not TRACES, reason="KV_TRACES names no folder with recorded sessions"),
]
DEADLINE_MS = 30_000
SHIPPED_MS = 15
"""What the adapter waits of its budget of 20 ms."""


@pytest.fixture(scope="module")
def asked() -> list[sessions.Asked]:
    found = sessions.read_sessions(Path(TRACES))
    assert found
    return found


def test_without_a_tier_the_ratio_is_that_of_an_independent_count(
    short_dir: Path, shm_dir: Path, asked: list[sessions.Asked]
) -> None:
    with sessions.launch(short_dir, shm_dir / "a", asked) as server:
        figures = sessions.play(server, asked, 0)
    print(figures)
    assert abs(figures["ratio"] - sessions.counted(asked)) <= 0.002


def test_with_a_disk_and_time_it_is_that_of_an_unlimited_cache(
    short_dir: Path, shm_dir: Path, tmp_path: Path, asked: list[sessions.Asked]
) -> None:
    tier = ("--l2", f"disk:{tmp_path}/tier?size=4G", *PATIENT)
    with sessions.launch(short_dir, shm_dir / "a", asked, *tier, at_exit="keep") as server:
        figures = sessions.play(server, asked, DEADLINE_MS, is_calm=True)
        print(figures)
        assert figures["ratio"] == pytest.approx(sessions.unlimited(asked), abs=1e-9)
        written(server, "disk")
        server.kill()
    whole = sessions.whole(asked)
    for is_reboot in (False, True):
        if is_reboot:
            shutil.rmtree(shm_dir / "a")
        with sessions.launch(short_dir, shm_dir / "a", asked, *tier, at_exit="keep") as server:
            figures = sessions.play(server, asked, DEADLINE_MS, is_calm=True)
            print("after a reboot" if is_reboot else "after a restart", figures)
            assert figures["ratio"] == pytest.approx(whole, abs=1e-9)
            server.kill()


@pytest.mark.parametrize("kind", ["mooncake", "valkey"])
def test_what_one_server_stored_another_one_hits(
    short_dir: Path, shm_dir: Path, tmp_path: Path, asked: list[sessions.Asked], kind: str
) -> None:
    """Each has an L1 of a quarter; the second one begins with an empty one."""
    with stores.opened(kind, tmp_path / "store", mib=1024) as store:
        tier = ("--l2", store.url, *PATIENT)
        with sessions.launch(short_dir / "a", shm_dir / "a", asked, *tier) as one:
            figures = sessions.play(one, asked, DEADLINE_MS, is_calm=True)
            print(kind, figures)
            assert figures["ratio"] == pytest.approx(sessions.unlimited(asked), abs=1e-9)
            written(one, store.tier)
        with sessions.launch(short_dir / "b", shm_dir / "b", asked, *tier) as other:
            figures = sessions.play(other, asked, DEADLINE_MS)
            print(kind, "beside it", figures)
            assert figures["ratio"] == pytest.approx(sessions.whole(asked), abs=1e-9)
            assert figures[f"tier_{store.tier}_hit_chunks"] > 0


def written(server: ServerProcess, tier: str) -> None:
    """Waits until a tier has all that it was to be given."""
    assert wait_until(lambda: counters(server)[f"tier_{tier}_puts_waiting"] == 0)
    assert wait_until(lambda: counters(server)[f"tier_{tier}_jobs"] == 0)


def test_as_it_is_shipped_misses_have_reasons(
    short_dir: Path, shm_dir: Path, tmp_path: Path, asked: list[sessions.Asked]
) -> None:
    tier = ("--l2", f"disk:{tmp_path}/tier?size=4G")
    with sessions.launch(short_dir, shm_dir / "a", asked, *tier) as server:
        figures = sessions.play(server, asked, SHIPPED_MS)
    print(figures)
    assert sessions.counted(asked) - 0.002 <= figures["ratio"] <= sessions.unlimited(asked)
