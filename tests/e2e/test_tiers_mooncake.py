"""Two servers share a Mooncake cluster; what happens to it costs engines misses, and no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.stores.mooncake import Cluster, cluster
from tests.stores.valkey import required
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
from tests.wire.process import ServerProcess, wait_until

ALL = [CHAIN] * NUM_CHAINS
DEADLINE_S = 1.0
SLACK_S = 0.5
HEAL_S = 60.0
HURT_S = 12.0
"""Long enough for breakers, for a porter that is caught to be ended, for the master to notice."""


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[Cluster, str]]:
    """A cluster with room for everything, and its URL."""
    required("mooncake")
    with cluster(folder, nodes=2, node_mib=64) as made:
        yield made, f"mooncake://{made.address}"


def is_up(server: ServerProcess) -> bool:
    return counters(server).get("tier_mooncake_up") == 1


def put_bytes(server: ServerProcess) -> int:
    return counters(server).get("tier_mooncake_put_bytes", 0)


def is_idle(server: ServerProcess) -> bool:
    found = counters(server)
    return not (found["pinned_slots"] or found["tier_mooncake_puts_waiting"])


def test_what_one_server_stored_the_other_finds(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    working_set = chains()
    with two_nodes(tmp_path) as (_, url):
        with serve(short_dir / "a", shm_dir / "a", url) as one:
            filled(one, "mooncake", working_set)
            with serve(short_dir / "b", shm_dir / "b", url) as other:
                assert wait_until(lambda: is_up(other), HEAL_S, 0.1)
                assert fetched(other, working_set) == ALL
                found = counters(other)
                assert found["tier_mooncake_hit_chunks"] == sum(ALL)
                assert found.get("stored_chunks", 0) == 0
        with serve(short_dir / "c", shm_dir / "c", url) as third:
            assert wait_until(lambda: is_up(third), HEAL_S, 0.1)
            assert fetched(third, working_set) == ALL, "the cluster outlives servers"


Act = Callable[[Cluster], None]
HARMS: dict[str, tuple[Act, Act]] = {
    "node-killed": (
        lambda cluster: cluster.nodes[0].kill(),
        lambda cluster: cluster.nodes[0].start(),
    ),
    "node-stopped": (
        lambda cluster: cluster.nodes[0].stop(),
        lambda cluster: cluster.nodes[0].go_on(),
    ),
    "master-killed": (
        lambda cluster: cluster.master.kill(),
        lambda cluster: cluster.master.start(),
    ),
    "master-stopped": (
        lambda cluster: cluster.master.stop(),
        lambda cluster: cluster.master.go_on(),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARMS)
def test_a_cluster_that_is_hurt_is_a_miss_in_time_and_heals(
    short_dir: Path, shm_dir: Path, tmp_path: Path, harm: str
) -> None:
    hurt, heal = HARMS[harm]
    working_set = chains()
    with two_nodes(tmp_path) as (servers, url):
        with serve(short_dir / "a", shm_dir / "a", url) as one:
            filled(one, "mooncake", working_set)
        more = ("--promote-deadline", f"{DEADLINE_S}s")
        with (
            serve(short_dir / "b", shm_dir / "b", url, more=more) as server,
            TierEngine(server) as engine,
        ):
            assert wait_until(lambda: is_up(server), HEAL_S, 0.1)
            assert engine.fetch(working_set[0]) == CHAIN
            hurt(servers)
            longest_s, turns, end_s = 0.0, 0, time.monotonic() + HURT_S
            while time.monotonic() < end_s:
                keys = working_set[1 + turns % (NUM_CHAINS - 1)]
                begin_s = time.monotonic()
                engine.fetch(keys)
                longest_s = max(longest_s, time.monotonic() - begin_s)
                turns += 1
                time.sleep(0.05)
            print(f"{harm}: {turns} lookups, the longest took {longest_s:.2f} s")
            if "master" in harm:  # the one that cannot do without; a breaker spares the waiting
                assert counters(server)["tier_mooncake_breaker_opens"] >= 1
                assert turns > 2 * HURT_S / DEADLINE_S
            assert longest_s < DEADLINE_S + SLACK_S
            heal(servers)
            healed_s = time.monotonic()
            assert wait_until(lambda: is_up(server), HEAL_S, 0.1)
            fresh = iter(chains(200, seed=3))

            def written() -> bool:
                before = put_bytes(server)
                engine.keep(next(fresh))
                return wait_until(lambda: put_bytes(server) > before, 3.0, 0.05)

            assert wait_until(written, HEAL_S, 0.2)
            print(f"{harm}: writes go on {time.monotonic() - healed_s:.1f} s after")
            assert wait_until(lambda: counters(server)["pinned_slots"] == 0, 30.0, 0.1)
            print({k: v for k, v in counters(server).items() if "tier_" in k or "miss_" in k})


@pytest.mark.slow
def test_a_full_cluster_costs_misses_only(short_dir: Path, shm_dir: Path, tmp_path: Path) -> None:
    """Twice what it has room for: the cluster evicts behind our back, refuses, and goes on."""
    required("mooncake")
    more = ("--promote-deadline", f"{DEADLINE_S}s")
    with (
        cluster(tmp_path, nodes=1, node_mib=16) as small,
        serve(short_dir, shm_dir / "a", f"mooncake://{small.address}", more=more) as server,
        TierEngine(server) as engine,
    ):
        assert wait_until(lambda: is_up(server), HEAL_S, 0.1)
        all_chains = chains(128)
        for keys in all_chains:
            engine.keep(keys)
            assert wait_until(lambda: is_idle(server), 30.0, 0.01)  # L1 keeps but four chains
        assert counters(server).get("tier_mooncake_evicted_unsaved", 0) == 0
        found, longest_s = [], 0.0
        for keys in all_chains:
            begin_s = time.monotonic()
            found.append(engine.fetch(keys))
            longest_s = max(longest_s, time.monotonic() - begin_s)
        told = counters(server)
        print(f"{sum(found)} of {CHAIN * len(found)} chunks found, the longest {longest_s:.2f} s")
        print({name: value for name, value in told.items() if "tier_" in name or "miss_" in name})
        assert CHAIN * len(found) / 8 < sum(found) < CHAIN * len(found)
        assert longest_s < DEADLINE_S + SLACK_S
        assert counters(server)["tier_mooncake_errors"] == 0
        before = put_bytes(server)
        engine.keep(chains(1, seed=5)[0])
        assert wait_until(lambda: put_bytes(server) > before, 30.0, 0.1)
