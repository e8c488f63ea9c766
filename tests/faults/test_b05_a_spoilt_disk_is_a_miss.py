"""B05: what a disk lost, cut or changed is a miss with a counter; nobody is ever given it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tiers.rig import (
    CHAIN,
    PAGE_BYTES,
    TierEngine,
    chains,
    counters,
    disk,
    fetched,
    filled_disk,
    serve,
    settle,
)
from tests.tiers.trouble import flip, value_of, values
from tests.wire.process import wait_until

pytest.importorskip("lmdb")
pytest.importorskip("xxhash")
AT = 5
"""The chunk of a chain that is spoilt."""


def left_alone(short_dir: Path, shm_dir: Path, folder: Path, layout: str) -> list[list[bytes]]:
    """A folder with a working set, and no server."""
    working_set = chains(4)
    with filled_disk(short_dir, shm_dir, disk(folder, layout=layout), working_set) as server:
        server.kill()
    shutil.rmtree(shm_dir / "a")
    return working_set


@pytest.mark.parametrize("how", ["payload", "header", "truncated", "emptied", "gone", "a folder"])
def test_one_file_is_spoilt(short_dir: Path, shm_dir: Path, tmp_path: Path, how: str) -> None:
    working_set = left_alone(short_dir, shm_dir, tmp_path, "files")
    path = value_of(tmp_path, working_set[0][AT])
    if how == "payload":
        flip(path, path.stat().st_size - 1)
    elif how == "header":
        flip(path, 40)
    elif how == "truncated":
        with open(path, "r+b") as file:
            file.truncate(PAGE_BYTES // 2)
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
        if how == "a folder":
            path.mkdir()
    with serve(short_dir, shm_dir / "a", disk(tmp_path, layout="files")) as server:
        assert fetched(server, working_set) == [AT, CHAIN, CHAIN, CHAIN]
        found = counters(server)
        spoilt = ("corrupt", "absent", "errors")
        assert sum(found.get(f"tier_disk_{kind}", 0) for kind in spoilt) + found.get(
            "miss_chunks_cold", 0
        )
        if how in ("payload", "header"):
            assert found["tier_disk_corrupt"] >= 1
            assert found["miss_chunks_corrupt"] >= 1
        with TierEngine(server) as engine:
            engine.keep(working_set[0])
            assert engine.fetch(working_set[0]) == CHAIN, "computed again, it is held again"


def test_every_slot_is_spoilt(short_dir: Path, shm_dir: Path, tmp_path: Path) -> None:
    working_set = left_alone(short_dir, shm_dir, tmp_path, "slab")
    for path in values(tmp_path):
        for offset in range(4096 + 100, path.stat().st_size, 4096):
            flip(path, offset)
    url = disk(tmp_path)
    with serve(short_dir, shm_dir / "a", url) as server:
        assert fetched(server, working_set) == [0] * len(working_set)
        assert counters(server)["tier_disk_corrupt"] >= len(working_set)
        with TierEngine(server) as engine:
            for number, keys in enumerate(working_set, 1):
                engine.keep(keys)
                settle(server, "disk", number * CHAIN)
        server.kill()
    shutil.rmtree(shm_dir / "a")
    with serve(short_dir, shm_dir / "a", url) as server:
        assert fetched(server, working_set) == [CHAIN] * len(working_set), "written anew"


@pytest.mark.parametrize("layout", ["slab", "files"])
def test_the_folder_vanishes_under_a_running_server(
    short_dir: Path, shm_dir: Path, tmp_path: Path, layout: str
) -> None:
    folder, working_set = tmp_path / "tier", chains()
    with filled_disk(short_dir, shm_dir, disk(folder, layout=layout), working_set) as server:
        shutil.rmtree(folder)
        found = fetched(server, working_set)  # what comes is right; an open file may outlive it
        assert all(0 <= count <= CHAIN for count in found)
        with TierEngine(server) as engine:
            fresh = chains(2, seed=1)
            for keys in fresh:
                engine.keep(keys)
            assert [engine.fetch(keys) for keys in fresh] == [CHAIN, CHAIN]
        assert wait_until(lambda: counters(server)["leases"] == 0)
        assert server.process.poll() is None
