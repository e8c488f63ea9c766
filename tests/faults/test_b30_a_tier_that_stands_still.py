"""B30: a tier that never answers holds nobody longer than the deadline, and heals by itself."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.tiers.rig import (
    CHAIN,
    TierEngine,
    chains,
    counters,
    disk,
    fetched,
    filled_disk,
    serve,
)
from tests.tiers.trouble import porter_of, porters, stopped
from tests.wire.process import is_alive, wait_until

pytest.importorskip("lmdb")
pytest.importorskip("xxhash")
DEADLINE_S = 0.5
SLACK_S = 0.4
"""For two busy cores."""

HEAL_S = 60.0
DEADLINE = ("--promote-deadline", f"{DEADLINE_S}s")


def left_alone(short_dir: Path, shm_dir: Path, folder: Path) -> list[list[bytes]]:
    """A folder with a working set, and no server."""
    working_set = chains()
    with filled_disk(short_dir, shm_dir, disk(folder), working_set) as server:
        server.kill()
    shutil.rmtree(shm_dir / "a")
    return working_set


def test_a_stopped_tier_costs_a_deadline_and_heals(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    working_set = left_alone(short_dir, shm_dir, tmp_path)
    with (
        serve(short_dir, shm_dir / "a", disk(tmp_path), more=DEADLINE) as server,
        TierEngine(server) as engine,
    ):
        assert wait_until(lambda: counters(server).get("tier_disk_up") == 1)
        assert engine.fetch(working_set[0]) == CHAIN
        with stopped(porter_of(server)):
            begin_s = time.monotonic()
            while counters(server)["tier_disk_up"]:
                asked_s = time.monotonic()
                found = engine.look(working_set[1])
                assert time.monotonic() - asked_s < DEADLINE_S + SLACK_S
                assert found.final
                assert found.ready == 0
                engine.end()
                assert engine.fetch(working_set[0]) == CHAIN, "what L1 holds is served"
                assert time.monotonic() - begin_s < 10.0, "the breaker does not open"
            began_s = time.monotonic()
            assert engine.look(working_set[2]).final, "at once: nobody is asked"
            assert time.monotonic() - began_s < DEADLINE_S
            engine.end()
            engine.keep(chains(1, seed=7)[0])
        assert counters(server)["miss_chunks_deadline"] >= 1
        assert counters(server)["tier_disk_breaker_opens"] == 1
        assert wait_until(lambda: counters(server)["tier_disk_up"] == 1, HEAL_S, 0.1)
        assert engine.fetch(working_set[3]) == CHAIN
        assert wait_until(lambda: counters(server)["pinned_slots"] == 0), "the late bytes' slots"
        print(f"up again {time.monotonic() - begin_s:.1f} s after it was stopped")


def test_many_requests_for_a_stopped_tier_wait_side_by_side(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    working_set = left_alone(short_dir, shm_dir, tmp_path)
    with serve(short_dir, shm_dir / "a", disk(tmp_path), more=DEADLINE) as server:
        engines = [TierEngine(server) for _ in range(4)]
        assert engines[0].fetch(working_set[0]) == CHAIN
        with stopped(porter_of(server)):
            begin_s = time.monotonic()
            threads = [
                threading.Thread(target=engine.look, args=(working_set[1 + at % 2],))
                for at, engine in enumerate(engines)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10.0)
            assert time.monotonic() - begin_s < DEADLINE_S + 2 * SLACK_S
        for engine in engines:
            engine.close()


def test_a_porter_that_stays_stopped_is_replaced(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    working_set = left_alone(short_dir, shm_dir, tmp_path)
    with serve(short_dir, shm_dir / "a", disk(tmp_path), more=DEADLINE) as server:
        assert fetched(server, working_set[:1]) == [CHAIN]
        pid = porter_of(server)
        with stopped(pid), TierEngine(server) as engine:
            assert engine.look(working_set[1]).ready == 0
            engine.end()
            assert wait_until(lambda: not is_alive(pid), HEAL_S, 0.1)
            assert wait_until(lambda: counters(server)["tier_disk_up"] == 1, HEAL_S, 0.1)
        assert porters(server) != [pid]
        assert fetched(server, working_set[1:3]) == [CHAIN, CHAIN]


def test_a_killed_porter_loses_nothing_but_time(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    working_set = left_alone(short_dir, shm_dir, tmp_path)
    with (
        serve(short_dir, shm_dir / "a", disk(tmp_path), more=DEADLINE) as server,
        TierEngine(server) as engine,
    ):
        for at in range(3):
            assert wait_until(lambda: counters(server).get("tier_disk_up") == 1, HEAL_S, 0.05)
            pid = porter_of(server)
            engine.request += 1
            engine.lookup(working_set[at], engine.request)  # its bytes are on their way
            os.kill(pid, signal.SIGKILL)
            engine.fetch(working_set[at + 4])  # compared where it comes
        assert wait_until(lambda: counters(server).get("tier_disk_up") == 1, HEAL_S, 0.05)
        assert wait_until(lambda: engine.fetch(working_set[0]) == CHAIN, HEAL_S, 0.1)
        engine.end()
        assert wait_until(lambda: counters(server)["pinned_slots"] == 0)
