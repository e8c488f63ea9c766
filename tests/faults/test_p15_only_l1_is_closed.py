"""P15: a tier may lose any part of a chain; what is served is a run from its start, always."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from protocol.messages import ChunkCountReply, Clear
from tests.tiers.rig import (
    CHAIN,
    TierEngine,
    chains,
    counters,
    disk,
    fetched,
    filled,
    filled_disk,
    serve,
)
from tests.tiers.trouble import value_of

pytest.importorskip("lmdb")
pytest.importorskip("xxhash")


def test_a_run_ends_where_the_tier_lost_a_parent(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    rng, working_set, url = random.Random(15), chains(8), disk(tmp_path, layout="files")
    with filled_disk(short_dir, shm_dir, url, working_set) as server:
        server.kill()
    shutil.rmtree(shm_dir / "a")
    lost = [rng.randrange(CHAIN) for _ in working_set]
    for keys, at in zip(working_set, lost, strict=True):
        value_of(tmp_path, keys[at]).unlink()
    with serve(short_dir, shm_dir / "a", url) as server:
        assert fetched(server, working_set) == lost
        with TierEngine(server) as engine:  # computed again from there on, and held
            for keys in working_set:
                engine.keep(keys)
                assert engine.fetch(keys) == CHAIN


def test_a_tier_that_was_emptied_meanwhile_claims_what_it_lost(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    working_set, url = chains(), disk(tmp_path, layout="files")
    with (
        serve(short_dir / "a", shm_dir / "a", url) as one,
        serve(short_dir / "b", shm_dir / "b", url) as other,
    ):
        filled(one, "disk", working_set)
        assert fetched(other, working_set[:2]) == [CHAIN, CHAIN]
        with TierEngine(other) as engine:
            engine.wire.call(Clear(), ChunkCountReply)
            assert [engine.fetch(keys) for keys in working_set] == [0] * len(working_set)
        found = fetched(one, working_set)  # what L1 holds, whole chains' beginnings
        assert sum(found) < len(working_set) * CHAIN
        with TierEngine(one) as engine:
            for keys in working_set:
                engine.keep(keys)
                assert engine.fetch(keys) == CHAIN
        assert counters(one).get("tier_disk_corrupt", 0) == 0
