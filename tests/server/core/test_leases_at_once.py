"""Two RETRIEVEs of one lease, each in slices between the other's."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.layout import unpack_slots
from tests.server.core.world import World, chain, config, namespace


def pinned(world: World) -> int:
    return world.core.stats()["pinned_slots"]


def test_two_that_retrieve_at_once_do_not_take_back_each_others_pins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The second one's first slice came before the first one reached those chunks, and its failure
    # after the first one's end took the pins back that the first one's answer counted on.
    monkeypatch.setattr("server.core.lease.PIN_SLOTS", 2)
    world = World(config(extents=8, slots=16))
    ranks = [world.engine("a", rank) for rank in range(2)]
    for engine in ranks:
        engine.register(namespace(ranks=2))
    keys = chain("x", 8)
    for engine in ranks:
        engine.save(keys)
    lease = ranks[0].lookup(keys).lease
    parts = [(ranks[1], 0, 8), (ranks[0], 5, 3)]
    sent = [
        (engine, engine.send(m.Retrieve(session=engine.session, lease=lease, start=at, count=n)))
        for engine, at, n in parts
    ]
    world.pump()
    for (engine, seq), (_, at, count) in zip(sent, parts, strict=True):
        reply = engine.answer(seq)
        engine.claim(keys, lease, at, unpack_slots(reply.slots, count, reply.num_shards))
    assert pinned(world) == 16
    for engine in ranks:
        engine.release(lease)
    assert pinned(world) == 0
