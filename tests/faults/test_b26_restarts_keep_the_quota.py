"""B26: a disk tier takes what it may and no more, over restarts and on a full file system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiers.rig import CHAIN, TierEngine, chains, counters, disk, serve
from tests.tiers.trouble import disk_use
from tests.wire.process import ServerProcess, wait_until

pytest.importorskip("lmdb")
pytest.importorskip("xxhash")
CAP_BYTES = 16 << 20
NUM_CHAINS = 96


def fill(server: ServerProcess, seed: int, num_chains: int = NUM_CHAINS) -> None:
    """Saves 24 MiB, one and a half times the cap."""
    with TierEngine(server) as engine:
        for number, keys in enumerate(chains(num_chains, seed)):
            engine.keep(keys)
            if not number % 8:
                wait_until(lambda: counters(server)["pinned_slots"] == 0, 10.0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["slab", "files"])
def test_fill_restart_fill(short_dir: Path, shm_dir: Path, tmp_path: Path, layout: str) -> None:
    url = disk(tmp_path, "16M", layout=layout)
    for seed in range(3):
        with serve(short_dir, shm_dir / "a", url) as server:
            fill(server, seed)
            assert disk_use(tmp_path) <= CAP_BYTES
            # Asked of the tier now and then.
            assert wait_until(lambda: counters(server)["tier_disk_used_bytes"] > 0, 60.0, 0.2)
            found = counters(server)
            assert found["tier_disk_used_bytes"] <= CAP_BYTES
            assert found["tier_disk_capacity_bytes"] <= CAP_BYTES
            with TierEngine(server) as engine:  # the youngest are in L1 or on the disk
                assert engine.fetch(chains(NUM_CHAINS, seed)[-1]) == CHAIN
        assert disk_use(tmp_path) <= CAP_BYTES


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("layout", ["slab", "files"])
def test_a_file_system_that_is_too_small(
    short_dir: Path, shm_dir: Path, tiny: Path, layout: str
) -> None:
    with serve(short_dir, shm_dir / "a", disk(tiny / "t", "64M", layout=layout)) as server:
        fill(server, 0)
        with TierEngine(server) as engine:
            for keys in chains(4, 0):
                engine.fetch(keys)  # compared where it comes
            keys = chains(1, 5)[0]
            engine.keep(keys)
            assert engine.fetch(keys) == CHAIN
        assert server.process.poll() is None
