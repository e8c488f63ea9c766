"""B22: whatever ends a request gives its leases back at once; B13: so does its engine's death."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from protocol.messages import (
    EndSession,
    Heartbeat,
    HeartbeatReply,
    LookupReply,
    QueryPrefetchStatus,
    Release,
    Released,
)
from tests.faults.bystander import engaged, fill, read_all, retrieve, stats
from tests.faults.childengine import ChildEngine
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

NUM = 10


def end(engine: Engine, request: int) -> int:
    return engine.wire.call(EndSession(session=engine.session, request=request), Released).chunks


def pins(engine: Engine) -> tuple[int, int]:
    now = stats(engine)
    return now["leases"], now["pinned_slots"]


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    return f"b22/{request.node.name}"


def test_a_thousand_lookups_then_end(server: ServerProcess, model: str) -> None:
    with engaged(server, make_namespace(model=model)) as engine:
        keys = make_keys(1, NUM)
        engine.save(keys, list(range(NUM)))
        for request in range(1000):
            assert engine.lookup(keys[: 1 + request % NUM], request).ready == 1 + request % NUM
            assert end(engine, request) == 1 + request % NUM
            assert end(engine, request) == 0  # twice is harmless
        assert pins(engine) == (0, 0)


def test_asking_again_and_again_under_one_name_holds_one_lease(
    server: ServerProcess, model: str
) -> None:
    with engaged(server, make_namespace(model=model)) as engine:
        keys = make_keys(2, NUM)
        engine.save(keys, list(range(NUM)))
        for _ in range(200):
            engine.lookup(keys, 1)
        assert stats(engine)["leases"] == 1
        end(engine, 1)
        assert pins(engine) == (0, 0)


def test_a_partial_take_then_end(server: ServerProcess, model: str) -> None:
    with engaged(server, make_namespace(model=model)) as engine:
        keys = make_keys(3, NUM)
        engine.save(keys, list(range(NUM)))
        found = engine.lookup(keys)
        retrieve(engine, found.lease, 4)
        assert pins(engine)[1] >= 4
        assert end(engine, 1) == NUM - 4  # what was not retrieved
        assert pins(engine) == (1, 4)
        assert engine.release(found.lease) == 4
        assert engine.release(found.lease) == 0
        assert pins(engine) == (0, 0)


def by_release_for_all(engine: Engine, lease: bytes) -> None:
    body = Release(session=engine.session, lease=lease, all_readers=True)
    engine.wire.call(body, Released)


def by_heartbeat(engine: Engine, lease: bytes) -> None:
    engine.wire.call(
        Heartbeat(session=engine.session, requests=struct.pack("<Q", 12_345)), HeartbeatReply
    )


def by_end(engine: Engine, lease: bytes) -> None:
    end(engine, 1)


def by_polling_given_up(engine: Engine, lease: bytes) -> None:
    body = QueryPrefetchStatus(session=engine.session, request=1, wait_ms=1)
    assert engine.wire.call(body, LookupReply).final
    end(engine, 1)


def by_a_lookup_that_finds_nothing(engine: Engine, lease: bytes) -> None:
    assert engine.lookup(make_keys(999, 3), 1).ready == 0


@pytest.mark.parametrize(
    "leave",
    [
        by_release_for_all,
        by_heartbeat,
        by_end,
        by_polling_given_up,
        by_a_lookup_that_finds_nothing,
    ],
)
def test_every_way_out_of_an_unretrieved_lease(
    server: ServerProcess, model: str, leave: Callable[[Engine, bytes], None]
) -> None:
    with engaged(server, make_namespace(model=model)) as engine:
        keys = make_keys(4, NUM)
        engine.save(keys, list(range(NUM)))
        found = engine.lookup(keys)
        assert found.ready == NUM
        leave(engine, found.lease)
        assert pins(engine) == (0, 0)


def test_a_retrieved_lease_is_given_back_in_parts(server: ServerProcess, model: str) -> None:
    with engaged(server, make_namespace(model=model)) as engine:
        keys = make_keys(5, NUM)
        engine.save(keys, list(range(NUM)))
        found = engine.lookup(keys)
        assert engine.release(found.lease) == 0  # nothing was retrieved: END_SESSION's to end
        retrieve(engine, found.lease, NUM)
        for start, ended in ((6, 4), (0, 4), (3, 2), (3, 0)):
            body = Release(session=engine.session, lease=found.lease, start=start, count=4)
            assert engine.wire.call(body, Released).chunks == ended
        assert pins(engine) == (0, 0)
        assert end(engine, 1) == 0


@pytest.mark.parametrize("action", ["lease", "retrieve"])
def test_b13_killed_between_lookup_and_retrieve_or_after(
    server: ServerProcess, model: str, action: str
) -> None:
    with engaged(server, make_namespace(model=model)) as engine:
        keys = make_keys(1, 16)
        fill(engine, 6)
        engine.save(keys, list(range(16)))
        with ChildEngine(server, model, action) as child:
            assert stats(engine)["leases"] == 1
            child.kill()
            assert wait_until(lambda: stats(engine)["instances"] == 1, 5)
            assert pins(engine) == (0, 0)
        assert np.array_equal(read_all(engine, keys), engine.pages[:16])


def test_eviction_does_not_starve_after_abandoned_requests(
    own_server: ServerProcess, model: str
) -> None:
    """An arena's worth of leases given up in every way, then everything is stored anew."""
    with engaged(own_server, make_namespace(model=model)) as engine:
        for seed in range(40):
            keys = make_keys(seed, 64)
            assert engine.save(keys, list(range(64))) == 64
            found = engine.lookup(keys, seed)
            if found.ready and seed % 2:
                retrieve(engine, found.lease, found.ready)
                by_release_for_all(engine, found.lease)
            elif seed % 3:
                end(engine, seed)
        engine.wire.call(Heartbeat(session=engine.session), HeartbeatReply)
        assert pins(engine) == (0, 0)
        for seed in range(100, 140):  # 40 MiB into an arena of 32
            assert engine.save(make_keys(seed, 64), list(range(64))) == 64
