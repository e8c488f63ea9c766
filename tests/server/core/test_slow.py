"""Slow requests: which are kept, what is told of them, and that they are few."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.limits import MAX_STATUS_CHARS
from protocol.messages import Op
from protocol.namespace import fingerprint
from protocol.status import MAX_SLOW, SlowRequest
from server.core import effects as fx
from server.core.slow import SLOW_NS
from tests.server.core.world import SECOND, Engine, World, chain, config, namespace

MS = SECOND // 1000


def slow(asker: Engine) -> tuple[SlowRequest, ...]:
    reply = asker.ask(m.Status())
    assert isinstance(reply, m.StatusReply)
    return reply.slow


def taken(engine: Engine, body: m.Request) -> fx.SendReply:
    """A request's answer, as the loop gets it."""
    engine.send(body)
    (reply,) = [one for one in engine.world.core.take_effects() if isinstance(one, fx.SendReply)]
    engine.receive(reply)
    return reply


def test_a_slow_request_is_told_with_who_asked_and_what_about() -> None:
    world = World(config())
    a = world.engine("a")
    a.client.client = "x" * (MAX_STATUS_CHARS + 1)
    a.peer = fx.PeerId(b"\0new!")
    a.hello()
    a.register(namespace())
    reply = taken(a, m.Lookup(session=a.session, request=1 << 62, start=0, keys=chain("x", 1)[0]))
    assert reply.told is None, "nothing is made for a request that may well be fast"
    world.core.took_long(reply, 250 * MS)
    world.step(3 * SECOND)
    (row,) = slow(a)
    assert (row.op, row.seq, row.request) == ("LOOKUP", reply.seq, 1 << 62)
    assert (row.client, row.instance) == ("x" * MAX_STATUS_CHARS, a.instance)
    assert row.fingerprint == fingerprint(namespace())
    assert (row.spent_us, row.wait_ms) == (250_000, 0)
    assert row.age_s == pytest.approx(2.75, abs=0.01)


def test_one_that_names_neither_request_nor_namespace_is_told_as_well() -> None:
    world = World(config())
    a = world.engine("a")
    world.core.took_long(taken(a, m.Ping()), SLOW_NS + 1)
    (row,) = slow(a)
    assert (row.op, row.request, row.fingerprint) == ("PING", -1, b"")


def test_a_registration_names_its_namespace_before_there_is_a_session() -> None:
    world = World(config())
    a = world.engine("a")
    world.core.pool_offered(a.process, a.pool, 4096 * len(a.pages))
    body = a.register_body(namespace())
    reply = fx.SendReply(a.peer, b"", int(Op.REGISTER_KV_CACHE), 1, None, 3, body)
    world.core.took_long(reply, SLOW_NS + 1)
    assert slow(a)[0].fingerprint == fingerprint(namespace())


@pytest.mark.parametrize(
    "body",
    [
        m.Events(cursor=1, wait_ms=3000),
        m.QueryPrefetchStatus(session=1, request=1, wait_ms=3000),
    ],
)
def test_a_wait_that_was_asked_for_is_none_of_it(body: m.Request) -> None:
    world = World(config())
    a = world.engine("a")
    reply = fx.SendReply(a.peer, b"", int(body.op), 1, None, 3, body)
    world.core.took_long(reply, 3 * SECOND + SLOW_NS)
    assert slow(a) == ()
    world.core.took_long(reply, 3 * SECOND + SLOW_NS + 1)
    (row,) = slow(a)
    assert (row.spent_us, row.wait_ms) == (3_100_000, 3000)


def test_who_is_gone_is_not_known_any_more() -> None:
    world = World(config())
    a, b = world.engine("a"), world.engine("b")
    reply = taken(b, m.Ping())
    b.die()
    world.core.took_long(reply, SLOW_NS + 1)
    (row,) = slow(a)
    assert (row.client, row.instance) == ("", b"")


def test_the_last_ones_are_kept_the_newest_first() -> None:
    world = World(config())
    a = world.engine("a")
    for number in range(MAX_SLOW + 4):
        reply = fx.SendReply(a.peer, b"", int(Op.PING), 1, None, number, m.Ping())
        world.core.took_long(reply, SLOW_NS + 1)
    assert [row.seq for row in slow(a)] == list(range(MAX_SLOW + 3, 3, -1))
