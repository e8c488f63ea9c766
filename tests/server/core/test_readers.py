"""Extents and the ranks that have them mapped."""

from __future__ import annotations

from protocol import messages as m
from protocol.errors import ErrorCode
from server.core import effects as fx
from tests.server.core.world import World, chain, config, namespace


def test_a_reader_that_unmaps_by_itself_is_not_offered_what_it_lacks() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    keys = chain("x", 4)
    a.save(keys)
    assert a.lookup(keys).ready == 4
    a.to_unmap = [1]
    a.report()
    world.pump()
    assert a.lookup(keys).ready == 0
    a.to_map = [1]
    a.report()
    world.pump()
    assert a.lookup(keys).ready == 4


def test_what_a_rank_unmapped_after_the_lookup_is_not_retrieved() -> None:
    world = World(config(extents=8, slots=16))
    ranks = [world.engine("a", rank) for rank in range(2)]
    keys = chain("x", 4)
    for engine in ranks:
        engine.register(namespace(ranks=2))
    for engine in ranks:
        engine.save(keys)
    found = ranks[0].lookup(keys)
    assert found.ready == 4
    (lost,) = [
        effect.geometry.extent
        for effect in world.log
        if isinstance(effect, fx.GiveExtent) and effect.process == ranks[1].process
    ]
    ranks[1].to_unmap = [lost]
    ranks[1].report()
    world.pump()
    ask = m.Retrieve(session=ranks[0].session, lease=found.lease, start=0, count=4)
    assert ranks[0].error(ask) is ErrorCode.UNAVAILABLE
    assert world.core.stats()["pinned_slots"] == 0
    ranks[1].to_map = [lost]
    ranks[1].report()
    world.pump()
    ranks[0].retrieve(keys, found.lease, 0, 4)
    assert world.core.stats()["pinned_slots"] == 8


def test_every_rank_of_a_shard_is_given_its_extents_and_no_other() -> None:
    world = World(config(extents=8, slots=4))
    space = namespace(ranks=2)
    a, b = world.engine("a", 0), world.engine("a", 1)
    a.register(space)
    b.register(space)
    given = {
        (effect.process, effect.geometry.shard)
        for effect in world.log
        if isinstance(effect, fx.GiveExtent)
    }
    assert given == {(a.process, 0), (b.process, 1)}


def test_nothing_is_offered_before_every_rank_has_mapped_it() -> None:
    world = World(config(extents=8, slots=16), auto_map=False)
    ranks = [world.engine("a", rank) for rank in range(2)]
    ranks[0].register(namespace(ranks=2))
    ranks[0].report()
    world.pump()
    keys = chain("x", 4)
    ranks[0].save(keys)
    assert ranks[0].lookup(keys).ready == 0
    ranks[1].register(namespace(ranks=2))
    ranks[1].save(keys)
    assert ranks[0].lookup(keys).ready == 0
    ranks[1].report()
    world.pump()
    assert ranks[0].lookup(keys).ready == 4


def test_an_unmapped_extent_cuts_the_offer_where_it_begins() -> None:
    world = World(config(extents=8, slots=8), auto_map=False)
    a = world.engine("a")
    a.register(namespace())
    a.report()
    world.pump()
    keys = chain("x", 20)
    assert a.save(keys) == 20
    assert a.lookup(keys).ready == 8
    a.report()
    world.pump()
    assert a.lookup(keys).ready == 20
