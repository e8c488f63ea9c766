"""What an engine says about itself."""

from __future__ import annotations

from protocol import messages as m
from protocol.errors import ErrorCode
from tests.server.core.world import World, chain, config, namespace


def test_unknown_extents_in_mapped_change_nothing() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    body = m.Mapped(session=1, mapped=b"\x63\0\0\0" * 9, unmapped=b"\x64\0\0\0")
    assert isinstance(a.ask(body), m.Done)


def test_a_heartbeat_keeps_the_leases_it_names_and_ends_the_others() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    keys = chain("x", 3)
    a.save(keys)
    for request in (1, 2):
        assert a.lookup(keys, request=request).ready == 3
    beat = m.Heartbeat(session=a.session, requests=(2).to_bytes(8, "little"))
    assert len(a.ask(beat).epoch) == 16
    assert world.core.stats()["leases"] == 1
    ragged = m.Heartbeat(session=a.session, requests=b"123")
    assert a.error(ragged) is ErrorCode.COUNT_MISMATCH
