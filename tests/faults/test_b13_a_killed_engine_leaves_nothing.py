"""B13: an engine is killed between any two of its messages: what it held goes, its chunks stay.

Within two seconds of its exit there is no session, lease, reservation, registration or mapping of
it; its chunks are hit by another engine, and nothing bars their eviction.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import ReplyError
from protocol.messages import ChunkCountReply, Done, Inspect, Unregister
from protocol.namespace import fingerprint
from tests.faults.bystander import engaged, fill, read_all, read_slots, retrieve, stats
from tests.faults.childengine import NUM_CHUNKS, ChildEngine
from tests.faults.copierfaults import CopierFaults, faulty_server
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

GONE_WITHIN_S = 2.0
COPY_PACE_S = 0.1
"""Per page, until the kill: the copy of a pool of 64 takes longer than the test takes to kill."""

Faulty = tuple[ServerProcess, CopierFaults]


@pytest.fixture(scope="module")
def faulty() -> Iterator[Faulty]:
    with (
        tempfile.TemporaryDirectory(prefix="kvk-") as folder,
        tempfile.TemporaryDirectory(prefix="kvk-", dir="/dev/shm") as arena,
        faulty_server(
            Path(folder), Path(arena) / "a", "--l1-size", "16M", "--extent-size", "2M"
        ) as made,
    ):
        yield made


def num_mapped_pools(server: ServerProcess) -> int:
    """Pools of this test's engines that the copier has mapped."""
    pids = server.children()
    return sum(
        Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").count("kvkeep-test-pool")
        for pid in pids
    )


def what_is_left(server: ServerProcess, engine: Engine) -> dict[str, int]:
    """What there is beyond one idle engine."""
    values = stats(engine)
    left = {name: values[name] for name in ("leases", "pinned_slots", "stores", "slots_reserved")}
    for name in ("processes", "sessions", "instances"):
        left[name] = values[name] - 1
    left["pools mapped"] = num_mapped_pools(server) - 1
    return {name: value for name, value in left.items() if value}


def see_it_go(server: ServerProcess, engine: Engine) -> None:
    dead_s = time.monotonic()
    assert wait_until(lambda: not what_is_left(server, engine)), what_is_left(server, engine)
    assert time.monotonic() - dead_s < GONE_WITHIN_S


@pytest.mark.parametrize(
    "action",
    [
        "greet",
        "offer",
        "enrol",
        "attend",
        "lease",
        "retrieve",
        "store",
        "reserve",
        "commit",
        "leave",
    ],
)
def test_killed_at_any_message(faulty: Faulty, action: str) -> None:
    server, faults = faulty
    model = f"b13/{action}"
    with engaged(server, make_namespace(model=model)) as engine:
        fill(engine, 77)
        kept = make_keys(1, NUM_CHUNKS)
        assert engine.save(kept, list(range(NUM_CHUNKS))) == NUM_CHUNKS
        expected = engine.pages[:NUM_CHUNKS].copy()
        with faults.pace(COPY_PACE_S if action in ("store", "leave") else 0):
            if action == "enrol":
                faults.arm("map_pool", "before", "1.0")
            with ChildEngine(server, model, action, 2 if action == "reserve" else 1) as child:
                if action in ("store", "leave"):
                    assert wait_until(lambda: stats(engine)["copies_in_flight"] > 0)
                if action == "leave":  # not before: a STORE that waits for room ends at once
                    child.tell()
                    assert wait_until(lambda: stats(engine)["sessions"] == 1)
                if action == "enrol":
                    assert wait_until(lambda: stats(engine)["sessions"] == 2)
                child.kill()
        see_it_go(server, engine)
        engine.pump()
        assert np.array_equal(read_all(engine, kept), expected)
        if action == "commit":  # all of it or nothing: its COMMIT was sent before it died
            stored = make_keys(1005, 64)
            assert engine.lookup(stored).ready in (0, 64)
        assert_evictable(engine, kept)
        assert "Traceback" not in server.log()


def assert_evictable(engine: Engine, kept: list[bytes]) -> None:
    """Nothing that is gone bars the eviction of its chunks."""

    name = fingerprint(engine.namespace)

    def is_evicted() -> bool:
        seed = int.from_bytes(os.urandom(4), "little")
        engine.save(make_keys(seed, 64), list(range(64)))
        asked = Inspect(fingerprint=name, keys=b"".join(kept))  # neither leases nor touches
        return engine.wire.call(asked, ChunkCountReply).chunks == 0

    assert wait_until(is_evicted, 30, 0)


@pytest.mark.parametrize("when", ["idle", "leased", "retrieved"])
def test_one_rank_of_two_is_killed(faulty: Faulty, when: str) -> None:
    """No hits while a rank is missing; its shares go, the others' stay; another takes its seat."""
    server, _ = faulty
    space = make_namespace(model=f"b13/ranks/{when}", num_ranks=2)
    instance = os.urandom(16)
    leader = Engine(server.url, server.side_path, space, instance=instance)
    keys = make_keys(3, NUM_CHUNKS)
    try:
        leader.register()
        leader.pump_while_waiting()
        fill(leader, 5)
        model = space.model_id
        with ChildEngine(server, model, "save", 3, instance, 1, 2) as follower:
            assert leader.save(keys, list(range(NUM_CHUNKS))) == NUM_CHUNKS
            assert wait_until(lambda: leader.lookup(keys).ready == NUM_CHUNKS)
            found = leader.lookup(keys)
            slots = None
            if when == "retrieved":
                slots = retrieve(leader, found.lease, NUM_CHUNKS)
                assert stats(leader)["pinned_slots"] == 2 * NUM_CHUNKS
            follower.kill()
            dead_s = time.monotonic()
            pins = NUM_CHUNKS if when == "retrieved" else 0
            assert wait_until(lambda: stats(leader)["sessions"] == 1)
            assert wait_until(lambda: stats(leader)["pinned_slots"] == pins)
            assert time.monotonic() - dead_s < GONE_WITHIN_S
        assert leader.lookup(keys, request=9).ready == 0
        if when == "leased":
            with pytest.raises(ReplyError, match=r"UNAVAILABLE|UNKNOWN_LEASE"):
                retrieve(leader, found.lease, NUM_CHUNKS)
        if slots is not None:  # promised to this rank before: it may still load its shard
            assert np.array_equal(read_slots(leader, slots), leader.pages[:NUM_CHUNKS])
            assert leader.release(found.lease) == NUM_CHUNKS
        with ChildEngine(server, model, "attend", 3, instance, 1, 2):
            assert wait_until(lambda: leader.lookup(keys, request=10).ready == NUM_CHUNKS)
            found = leader.lookup(keys, request=11)
            data = leader.read(found.lease, found.ready)
            assert np.array_equal(data, leader.pages[:NUM_CHUNKS])
        assert wait_until(lambda: stats(leader)["sessions"] == 1)
        leader.wire.call(Unregister(session=leader.session), Done)
    finally:
        leader.close()
    assert "Traceback" not in server.log()
