"""Who belongs to which engine and namespace."""

from __future__ import annotations

from protocol import messages as m
from protocol.errors import ErrorCode
from tests.server.core.world import World, chain, config, namespace


def test_namespaces_do_not_share() -> None:
    world = World(config())
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace("m"))
    b.register(namespace("other"))
    keys = chain("x", 6)
    a.save(keys)
    assert b.lookup(keys).ready == 0
    b.save(keys)
    assert a.lookup(keys).ready == 6


def test_a_rank_has_one_seat_and_an_engine_one_namespace() -> None:
    world = World(config())
    space = namespace(ranks=2)
    a, again, b = world.engine("a", 0), world.engine("a", 0), world.engine("a", 1)
    a.register(space)
    assert (
        again.error(m.RegisterKvCache(namespace=space, rank=0, memory=None, pools=()))
        is ErrorCode.DUPLICATE
    )
    other = m.RegisterKvCache(namespace=namespace("other", ranks=2), rank=1, memory=None, pools=())
    assert b.error(other) is ErrorCode.INVALID_ARGUMENT
    b.register(space)
    (instance,) = world.core._state.roster.instances.values()
    assert sorted(instance.ranks) == [0, 1]
    assert instance.is_whole
