"""A server whose tier is encrypted, as a process: before there were keys, with one, with two."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.tiers.test_keyfile import FIRST, SECOND, written
from tests.tiers.rig import (
    CHAIN,
    chains,
    content,
    counters,
    disk,
    fetched,
    filled,
    serve,
)
from tests.wire.process import ServerProcess, wait_until

CHAINS = chains(2)


def is_readable(folder: Path, key: bytes) -> bool:
    """Whether a chunk is anywhere in the folder as it is."""
    data = content(key)
    return any(data[64:128] in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@contextmanager
def serving(short_dir: Path, shm_dir: Path, url: str) -> Iterator[ServerProcess]:
    """A server with nothing in L1."""
    with serve(short_dir, shm_dir / "a", url) as server:
        yield server
        server.kill()
    shutil.rmtree(shm_dir / "a")


def test_what_is_below_is_taken_with_its_key_only(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "l2"
    with serving(short_dir, shm_dir, disk(folder, layout="files")) as server:
        filled(server, "disk", CHAINS[:1])
    assert is_readable(folder, CHAINS[0][0]), "else what follows says nothing"
    url = disk(folder, layout="files", keys=written(tmp_path, f"first = {FIRST}"))
    with serving(short_dir, shm_dir, url) as server:
        # What was written before there were keys is a miss, which says why.
        assert fetched(server, CHAINS[:1]) == [0]
        found = counters(server)
        assert found["tier_disk_locked"] >= 1
        assert found["miss_chunks_corrupt"] == CHAIN
        assert found.get("tier_disk_corrupt", 0) == found.get("tier_disk_errors", 0) == 0
        filled(server, "disk", CHAINS)
        assert FIRST not in server.log()
    assert not any(is_readable(folder, key) for keys in CHAINS for key in keys), "written anew"
    # A second one writes; the first still reads.
    written(tmp_path, f"first = {FIRST}\nsecond = {SECOND}")
    with serving(short_dir, shm_dir, url) as server:
        assert fetched(server, CHAINS) == [CHAIN, CHAIN]
        assert not counters(server).get("tier_disk_locked", 0)


def test_a_line_that_is_none_keeps_the_tier_down_and_is_not_shown(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    keys = written(tmp_path, f"first = {FIRST[1:]}")
    words = ("--l1-size", "64M", "--l2", disk(tmp_path / "l2", keys=keys))
    with ServerProcess(short_dir, shm_dir / "a", *words) as server:
        assert wait_until(lambda: "line 1: expected name = 64" in server.log(), 20, 0.05)
        assert FIRST[1:] not in server.log()
