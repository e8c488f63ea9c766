"""B24, the server's half: a request queues for long between LOOKUP and its load; all bytes come.

Every time of the server that could end something is shortened and passes, others fill the arena
several times over meanwhile, and one rank is stopped and loads last.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from protocol.layout import unpack_slots
from protocol.messages import Done, Retrieve, RetrieveReply, Unregister
from tests.faults.bystander import engaged, fill, read_slots, stats
from tests.faults.childengine import NUM_CHUNKS, ChildEngine
from tests.faults.copierfaults import faulty_server
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import wait_until

SHORT_S = 0.5


def test_b24_a_request_that_queues_loads_all_its_bytes_on_every_rank(
    short_dir: Path, shm_dir: Path
) -> None:
    sizes = ("--l1-size", "8M", "--extent-size", "1M", "--incomplete-timeout", str(SHORT_S))
    space = make_namespace(model="b24", num_ranks=2)
    instance, keys = os.urandom(16), make_keys(3, NUM_CHUNKS)
    with (
        faulty_server(short_dir, shm_dir / "a", *sizes, commit_s=SHORT_S) as (server, _),
        engaged(server, make_namespace(model="b24/others")) as other,
        Engine(server.url, server.side_path, space, instance=instance) as leader,
    ):
        leader.register()
        leader.pump_while_waiting()
        fill(leader, 5)
        expected = leader.pages[:NUM_CHUNKS].copy()
        with ChildEngine(server, "b24", "follow", 3, instance, 1, 2) as follower:
            assert leader.save(keys, list(range(NUM_CHUNKS))) == NUM_CHUNKS
            assert wait_until(lambda: leader.lookup(keys).ready == NUM_CHUNKS)
            found = leader.lookup(keys)
            os.kill(follower.pid, signal.SIGSTOP)
            press(other, leader, 4 * SHORT_S)
            body = Retrieve(session=leader.session, lease=found.lease, start=0, count=NUM_CHUNKS)
            promised = leader.wire.call(body, RetrieveReply).slots
            slots = unpack_slots(promised, NUM_CHUNKS, 2)[:, leader.shard]
            press(other, leader, 4 * SHORT_S)
            assert np.array_equal(read_slots(leader, slots), expected)
            assert leader.release(found.lease) == 0  # the other rank still reads
            leader.pages[:] = 0
            press(other, leader, 4 * SHORT_S)
            os.kill(follower.pid, signal.SIGCONT)
            follower.tell(promised.hex())
            follower.expect("right")
            assert stats(other)["pinned_slots"] == NUM_CHUNKS
        assert wait_until(lambda: stats(other)["pinned_slots"] == 0)
        leader.wire.call(Unregister(session=leader.session), Done)


def press(other: Engine, leader: Engine, at_least_s: float) -> None:
    """Fills the arena twice, and lets some time pass."""
    until_s = time.monotonic() + at_least_s
    rounds = 0
    while rounds < 16 or time.monotonic() < until_s:
        fill(other, rounds)
        other.save(make_keys(int.from_bytes(os.urandom(4), "little"), 64), list(range(64)))
        other.pump()
        leader.pump()
        rounds += 1
