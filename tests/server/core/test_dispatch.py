"""The core's face: requests in, effects out, through real frames."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from tests.server.core.world import World, chain, config, namespace


def test_a_chain_is_stored_found_read_and_given_back() -> None:
    world = World(config())
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    keys = chain("x", 20)
    assert a.save(keys) == 20
    found = b.lookup([*keys, *chain("y", 3)])
    assert (found.ready, found.final) == (20, True)
    slots = b.retrieve(keys, found.lease, 0, 20)
    assert slots.shape == (20, 1)
    assert b.end().chunks == 0
    assert world.core.stats()["pinned_slots"] == 20
    assert b.release(found.lease).chunks == 20
    assert b.release(found.lease).chunks == 0
    assert world.core.stats()["pinned_slots"] == 0
    assert world.core.stats()["leases"] == 0
    assert world.core.drained()


def test_hello_needs_the_token_and_names_the_side_socket() -> None:
    world = World(config(side_path="/run/x.side"))
    engine = world.engine()
    seq, frame = engine.client.hello(type(engine.token)(b"?" * 16))
    world.core.request(engine.peer, frame, world.now_ns)
    world.pump()
    error = engine.replies[seq].error
    assert error is not None
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert error.detail["side"] == "/run/x.side"


def test_draining_refuses_new_work_only() -> None:
    world = World(config())
    engine = world.engine()
    engine.register(namespace())
    keys = chain("x", 2)
    engine.save(keys)
    world.core.begin_drain(world.now_ns)
    with pytest.raises(ReplyError, match="DRAINING"):
        engine.lookup(keys)
    assert isinstance(engine.ask(m.Ping()), m.Done)


def test_errors_are_typed() -> None:
    """The random engines treat refusals as answers, so this sees that they are real ones."""
    world = World(config())
    engine = world.engine()
    with pytest.raises(ReplyError, match="UNKNOWN_SESSION"):
        engine.lookup(chain("x", 2))
