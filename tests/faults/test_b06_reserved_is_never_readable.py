"""B06: a writer stalls between STORE and COMMIT: its half-filled chunks are never readable.

The server's wait for a COMMIT is shortened (``tests/faults/injected``); the writer is stopped, or
merely slow. Only COMMIT publishes: expiry gives the space back, and a late COMMIT finds nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from protocol.messages import StopReason
from tests.faults.bystander import engaged, fill, read_all, stats
from tests.faults.copierfaults import CopierFaults, faulty_server
from tests.faults.inflight import NUM_CHUNKS, InFlight
from tests.wire.client import make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

COMMIT_S = 1.0
MINE = 1

Hurried = tuple[ServerProcess, CopierFaults]


@pytest.fixture
def hurried(short_dir: Path, shm_dir: Path) -> Iterator[Hurried]:
    sizes = ("--l1-size", "8M", "--extent-size", "1M")
    with faulty_server(short_dir, shm_dir / "a", *sizes, commit_s=COMMIT_S) as made:
        yield made


@pytest.mark.parametrize("stalls", ["stopped", "slow"])
def test_a_writer_that_stalls_before_its_commit(hurried: Hurried, stalls: str) -> None:
    server, _ = hurried
    model = f"b06/{stalls}"
    keys = make_keys(MINE, NUM_CHUNKS)
    with engaged(server, make_namespace(model=model)) as other:
        fill(other, 2)
        with InFlight(server, model, "save", MINE) as writer:
            assert writer.tell("settle") == f"copied {NUM_CHUNKS}"
            if stalls == "stopped":
                writer.signal(signal.SIGSTOP)
            _, refused = other.store(keys, list(range(NUM_CHUNKS)))
            assert (refused.copied, refused.stop) == (0, StopReason.BUSY)
            begun_s = time.monotonic()
            while stats(other)["slots_reserved"]:
                other.pump()
                assert other.lookup(keys).ready == 0
                assert time.monotonic() - begun_s < COMMIT_S + 5
            assert stats(other)["stores"] == 0
            assert other.lookup(keys).ready == 0
            # The space and the keys are anybody's.
            assert other.save(keys, list(range(NUM_CHUNKS))) == NUM_CHUNKS
            if stalls == "stopped":
                writer.signal(signal.SIGCONT)
            assert writer.tell("commit") == "UNKNOWN_STORE"
            assert np.array_equal(read_all(other, keys), other.pages)
    assert "Traceback" not in server.log()


def test_a_writer_whose_copy_outlasts_its_time(hurried: Hurried) -> None:
    """The STORE's own deadline passes while it is copied: answered, and nothing of it is kept."""
    server, faults = hurried
    with engaged(server, make_namespace(model="b06/late")) as other:
        fill(other, 2)
        with faults.pace(0.03), InFlight(server, "b06/late", "save_hurriedly", MINE) as writer:
            assert wait_until(lambda: stats(other)["copies_in_flight"] > 0)
            time.sleep(1.0)  # beyond its deadline; its slots are free only when its copy ended
            assert stats(other)["slots_reserved"] == NUM_CHUNKS
            assert wait_until(lambda: stats(other)["slots_reserved"] == 0)
            assert writer.tell("settle") == "DEADLINE_EXCEEDED"
        keys = make_keys(MINE, NUM_CHUNKS)
        assert other.lookup(keys).ready == 0
        assert other.save(keys, list(range(NUM_CHUNKS))) == NUM_CHUNKS
        assert np.array_equal(read_all(other, keys), other.pages)


def test_many_stalled_writers_do_not_keep_the_arena(hurried: Hurried) -> None:
    """Reservations of more than the arena holds: others are told so fast, and served afterwards."""
    server, _ = hurried
    with engaged(server, make_namespace(model="b06/many")) as other:
        fill(other, 3)
        writers = [InFlight(server, "b06/many", "save", 10 + number) for number in range(3)]
        try:
            for number, writer in enumerate(writers):
                assert writer.tell("settle") == f"copied {NUM_CHUNKS}", number
                writer.signal(signal.SIGSTOP)
            for seed in range(50, 58):
                other.save(make_keys(seed, 64), list(range(64)))
            assert wait_until(lambda: stats(other)["slots_reserved"] == 0, COMMIT_S + 5)
            for seed in range(60, 66):
                assert other.save(make_keys(seed, 64), list(range(64))) == 64
            assert np.array_equal(read_all(other, make_keys(65, 64)), other.pages)
            for number in range(3):
                assert other.lookup(make_keys(10 + number, NUM_CHUNKS)).ready == 0
        finally:
            for writer in writers:
                os.kill(writer.pid, signal.SIGCONT)
                writer.__exit__()
