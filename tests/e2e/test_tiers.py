"""What L1 has no room for comes back from a lower tier, bit for bit, and after restarts, too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from protocol.messages import ChunkCountReply, Clear, ForgottenReply
from tests.tiers.rig import (
    CHAIN,
    NUM_CHAINS,
    PAGE_BYTES,
    TierEngine,
    chains,
    counters,
    disk,
    fetched,
    filled,
    filled_disk,
    serve,
)
from tests.tiers.trouble import porter_of, stopped
from tests.wire.client import Engine
from tests.wire.process import wait_until

pytest.importorskip("lmdb")
pytest.importorskip("xxhash")
LAYOUTS = ("slab", "files")
ALL = [CHAIN] * NUM_CHAINS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_working_set_of_four_times_l1_is_found_whole(
    short_dir: Path, shm_dir: Path, tmp_path: Path, layout: str
) -> None:
    working_set = chains()
    with filled_disk(short_dir, shm_dir, disk(tmp_path, layout=layout), working_set) as server:
        for _ in range(2):
            assert fetched(server, working_set) == ALL
        found = counters(server)
        assert found["tier_disk_up"] == 1
        hits = found["tier_disk_hit_chunks"]
        assert 2 * sum(ALL) * 0.7 <= hits <= 2 * sum(ALL)
        assert found["tier_disk_get_bytes"] >= hits * PAGE_BYTES
        for name in ("errors", "corrupt", "breaker_opens"):
            assert found.get(f"tier_disk_{name}", 0) == 0, name


def test_without_a_tier_most_of_it_is_gone(short_dir: Path, shm_dir: Path) -> None:
    with serve(short_dir, shm_dir / "a", more=()) as server:
        with TierEngine(server) as engine:
            for keys in chains():
                engine.keep(keys)
        found = fetched(server, chains())
        assert sum(found) <= sum(ALL) // 4
        assert not [name for name in counters(server) if name.startswith("tier_")]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["SIGTERM", "kill -9"])
def test_a_restarted_server_finds_everything(
    short_dir: Path, shm_dir: Path, tmp_path: Path, layout: str, how: str
) -> None:
    working_set, url = chains(), disk(tmp_path, layout=layout)
    with filled_disk(short_dir, shm_dir, url, working_set) as server:
        server.kill() if how == "kill -9" else server.terminate()
    with serve(short_dir, shm_dir / "a", url) as server:
        assert counters(server)["adopted_chunks"] > 0
        assert fetched(server, working_set) == ALL


@pytest.mark.parametrize("layout", LAYOUTS)
def test_after_a_reboot_everything_comes_from_the_disk(
    short_dir: Path, shm_dir: Path, tmp_path: Path, layout: str
) -> None:
    working_set, url = chains(), disk(tmp_path, layout=layout)
    with filled_disk(short_dir, shm_dir, url, working_set) as server:
        server.kill()
    shutil.rmtree(shm_dir / "a")  # shared memory does not outlive the host
    with serve(short_dir, shm_dir / "a", url) as server:
        assert fetched(server, working_set) == ALL
        assert counters(server)["tier_disk_hit_chunks"] == sum(ALL)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_cleared_comes_back_from_nowhere(
    short_dir: Path, shm_dir: Path, tmp_path: Path, layout: str
) -> None:
    working_set, url = chains(), disk(tmp_path, layout=layout)
    with filled_disk(short_dir, shm_dir, url, working_set) as server:
        with TierEngine(server) as engine:
            assert engine.fetch(working_set[0]) == CHAIN
            engine.wire.call(Clear(), ChunkCountReply)
            assert [engine.fetch(keys) for keys in working_set] == [0] * NUM_CHAINS
            engine.keep(working_set[1])
        assert wait_until(lambda: counters(server)["tier_disk_drops_owed"] == 0)
        server.kill()
    shutil.rmtree(shm_dir / "a")
    with serve(short_dir, shm_dir / "a", url) as server:
        found = fetched(server, working_set)
        assert found[0] == 0, "cleared, and found by the next server"
        assert sum(found) <= CHAIN


@pytest.mark.parametrize("extents", ["kept", "lost"])
def test_what_a_tier_had_not_forgotten_before_a_kill_comes_back_from_nowhere(
    short_dir: Path, shm_dir: Path, tmp_path: Path, extents: str
) -> None:
    working_set, url = chains(4), disk(tmp_path)
    none = [0] * len(working_set)
    with (
        filled_disk(short_dir, shm_dir, url, working_set) as server,
        TierEngine(server) as engine,
        stopped(porter_of(server)),
    ):
        assert engine.wire.call(Clear(), ForgottenReply, 20).tiers_pending == 1
        server.kill()
    assert list((shm_dir / "a" / "owed").iterdir())
    for path in (shm_dir / "a").glob("*.extent") if extents == "lost" else ():
        path.unlink()
    with serve(short_dir, shm_dir / "a", url) as server:
        assert fetched(server, working_set) == none
        assert wait_until(lambda: counters(server)["tier_disk_drops_owed"] == 0)
        assert fetched(server, working_set) == none
        assert wait_until(lambda: not list((shm_dir / "a" / "owed").iterdir()))
        filled(server, "disk", working_set)


def test_two_servers_share_one_folder(short_dir: Path, shm_dir: Path, tmp_path: Path) -> None:
    working_set, url = chains(), disk(tmp_path, layout="files")
    with (
        serve(short_dir / "a", shm_dir / "a", url) as one,
        serve(short_dir / "b", shm_dir / "b", url) as other,
    ):
        filled(one, "disk", working_set)
        assert fetched(other, working_set) == ALL
        assert counters(other)["tier_disk_hit_chunks"] == sum(ALL)
        assert counters(other).get("stored_chunks", 0) == 0


def test_what_a_folder_lost_is_written_again_when_l1_uses_it(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    keys = chains(1)[0]
    with serve(short_dir, shm_dir / "a", disk(tmp_path / "l2", layout="files")) as server:
        filled(server, "disk", [keys])
        (values,) = [one for one in (tmp_path / "l2").iterdir() if len(one.name) == 32]
        shutil.rmtree(values)
        with TierEngine(server) as engine:
            assert engine.fetch(keys) == CHAIN
        assert wait_until(lambda: sum(one.is_file() for one in values.rglob("*")) == CHAIN)
        assert counters(server)["tier_disk_values_lost"] == CHAIN


def test_clear_of_all_reaches_what_only_a_disk_has(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    working_set, url = chains(2), disk(tmp_path)
    with filled_disk(short_dir, shm_dir, url, working_set) as server:
        server.kill()
    shutil.rmtree(shm_dir / "a")
    with serve(short_dir, shm_dir / "a", url) as server:
        with Engine(server.url, server.side_path) as operator:
            reply = operator.wire.call(Clear(), ForgottenReply)
        assert (reply.chunks, reply.tiers_pending) == (0, 0)
        assert fetched(server, working_set) == [0, 0]
