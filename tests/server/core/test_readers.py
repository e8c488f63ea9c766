"""Extents and the ranks that have them mapped."""

from __future__ import annotations

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
    world = World(config(extents=8, slots=8), auto_map=False)
    space = namespace(ranks=2)
    a, b = world.engine("a", 0), world.engine("a", 1)
    a.register(space)
    b.register(space)
    keys = chain("x", 3)
    assert a.save(keys) == b.save(keys) == 3
    assert a.lookup(keys).ready == 0
    a.report()
    world.pump()
    assert a.lookup(keys).ready == 0
    b.report()
    world.pump()
    assert a.lookup(keys).ready == 3
