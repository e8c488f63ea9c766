"""B27: with all of L1 pinned, STORE and promotion are answered within a second, with a reason."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from protocol.messages import LookupReply
from tests.tiers.rig import (
    CHAIN,
    TierEngine,
    chains,
    counters,
    disk,
    filled_disk,
    serve,
)
from tests.wire.process import ServerProcess, wait_until

pytest.importorskip("lmdb")
pytest.importorskip("xxhash")
ANSWER_S = 1.0


def pin_all(
    server: ServerProcess, engine: TierEngine, working_set: list[list[bytes]]
) -> list[bytes]:
    """Promotes and retrieves chains, and gives none back, until nothing more has room.

    Returns:
        Their leases.
    """
    leases = []
    for keys in working_set:
        found = engine.look(keys)
        if not found.ready:
            break
        engine.read(found.lease, found.ready)
        leases.append(found.lease)
        if found.ready < CHAIN:
            break
    assert counters(server)["pinned_slots"] > 2 * CHAIN
    return leases


def timed_look(engine: TierEngine, keys: list[bytes]) -> LookupReply:
    begin_s = time.monotonic()
    found = engine.look(keys)
    assert time.monotonic() - begin_s < ANSWER_S
    assert found.final
    return found


def test_all_of_l1_is_pinned(short_dir: Path, shm_dir: Path, tmp_path: Path) -> None:
    working_set, url = chains(), disk(tmp_path)
    with filled_disk(short_dir, shm_dir, url, working_set) as server:
        server.kill()
    shutil.rmtree(shm_dir / "a")
    with (
        serve(short_dir, shm_dir / "a", url) as server,
        TierEngine(server) as holder,
        TierEngine(server) as other,
    ):
        leases = pin_all(server, holder, working_set)
        last = working_set[-1]
        assert timed_look(other, last).ready == 0
        other.end()
        assert counters(server)["miss_chunks_no_room"] >= 1
        begin_s = time.monotonic()
        _, stored = other.store(chains(1, seed=9)[0], list(range(CHAIN)))
        assert time.monotonic() - begin_s < ANSWER_S
        assert stored.copied == 0
        for lease in leases:
            holder.release(lease)
        assert wait_until(lambda: counters(server)["pinned_slots"] == 0)
        assert other.fetch(last) == CHAIN, "there is room again"
        other.keep(chains(1, seed=9)[0])
