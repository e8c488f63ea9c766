"""EVENTS and SNAPSHOT as requests: who asks is an operator, also one whose connection ended."""

from __future__ import annotations

from protocol import messages as m
from server.core.dispatch import CAPABILITIES
from tests.server.core.world import World, chain, config, namespace


def test_who_asks_is_an_operator_and_needs_no_session() -> None:
    assert "events" in CAPABILITIES
    world = World(config())
    a, r, s = world.engine(), world.engine("r"), world.engine("s")
    a.register(namespace())
    keys = chain("x", 3)
    a.save(keys)
    assert r.ask(m.Events(cursor=0)) == m.EventsReply(cursor=1, lost=True)
    page = s.ask(m.Snapshot())
    assert page.keys == b"".join(keys)
    assert page.parents == bytes(16) + b"".join(keys[:-1])
    assert page.next_fingerprint == b""
    states = {one.instance: one.state for one in r.ask(m.Status()).engines}
    assert [states[one.instance] for one in (a, r, s)] == ["serving", "operator", "operator"]


def test_an_empty_server_has_one_empty_page() -> None:
    r = World(config()).engine("r")
    assert r.ask(m.Snapshot()) == m.SnapshotReply(fingerprint=b"", keys=b"", parents=b"")
    assert r.ask(m.Snapshot(fingerprint=b"z" * 16, position=9)).next_fingerprint == b""


def test_who_is_about_to_leave_does_not_wait() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    cursor = a.ask(m.Events(cursor=0)).cursor
    world.core.process_quiet(a.process, world.now_ns)
    assert a.ask(m.Events(cursor=cursor, wait_ms=1000)) == m.EventsReply(cursor=cursor)
