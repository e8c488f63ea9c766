"""Two servers share a store: what one stored the other finds; the store's loss costs no engine.

Longer losses, of more kinds, are in ``test_tiers_losses``.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.tiers import losing, stores
from tests.tiers.losing import DEADLINE, DEADLINE_S, HEAL_S, SLACK_S
from tests.tiers.rig import (
    CHAIN,
    NUM_CHAINS,
    TierEngine,
    chains,
    counters,
    fetched,
    filled,
    serve,
)
from tests.wire.process import wait_until

ALL = [CHAIN] * NUM_CHAINS
KINDS = ["mooncake", "valkey", pytest.param("s3", marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_server_stored_the_other_finds(
    short_dir: Path, shm_dir: Path, tmp_path: Path, kind: str
) -> None:
    working_set = chains()
    with stores.opened(kind, tmp_path / "store") as store:
        with serve(short_dir / "a", shm_dir / "a", store.url) as one:
            filled(one, store.tier, working_set)
            with serve(short_dir / "b", shm_dir / "b", store.url) as other:
                assert fetched(other, working_set) == ALL
                found = counters(other)
                assert found[f"tier_{store.tier}_hit_chunks"] == sum(ALL)
                assert found.get("stored_chunks", 0) == 0
        with serve(short_dir / "c", shm_dir / "c", store.url) as third:
            assert fetched(third, working_set) == ALL, "stores outlive servers"


@pytest.mark.parametrize("name", ["killed", "stopped"])
def test_a_lost_store_is_a_miss_in_time_and_comes_back(
    short_dir: Path, shm_dir: Path, tmp_path: Path, name: str
) -> None:
    working_set = chains()
    with stores.opened("valkey", tmp_path / "store") as store:
        loss = store.losses[name]
        with serve(short_dir / "a", shm_dir / "a", store.url) as one:
            filled(one, "valkey", working_set)
        with (
            serve(short_dir / "b", shm_dir / "b", store.url, more=DEADLINE) as server,
            TierEngine(server) as engine,
        ):
            assert engine.fetch(working_set[0]) == CHAIN
            loss.begin()
            for keys in working_set[1:6]:
                begin_s = time.monotonic()
                engine.fetch(keys)
                assert time.monotonic() - begin_s < DEADLINE_S + SLACK_S
                assert engine.fetch(working_set[0]) == CHAIN, "L1 serves"
            loss.end()
            back_s = losing.written_again(server, engine, "valkey")
            print(f"written again {back_s:.1f} s after the store was back")
            if loss.keeps:
                assert engine.fetch(working_set[7]) == CHAIN
            assert wait_until(lambda: counters(server)["pinned_slots"] == 0, HEAL_S)
