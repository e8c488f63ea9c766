"""The budget: extents made ahead, waited for, never beyond it."""

from __future__ import annotations

from msgspec.structs import replace

from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.namespace import LayerGroup
from server.core import effects as fx
from server.core.config import CoreConfig
from server.core.growth import Demand
from tests.server.core.world import PAGE, SECOND, World, chain, config, namespace


def test_the_next_extent_is_made_before_the_last_is_full() -> None:
    world = World(config(extents=4, slots=8), auto_extents=True)
    a = world.engine()
    a.register(namespace())
    a.save(chain("x", 7))
    assert world.core.stats()["extents"] == 2


def test_a_store_waits_for_its_extent_and_others_go_on() -> None:
    world = World(config(extents=4, slots=4))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace("other"))
    world.auto_extents = False
    waiting = a.send(a.store_body(chain("x", 8)))
    world.pump()
    assert waiting not in a.replies
    assert b.save(chain("y", 3)) == 3
    creates = [effect for effect in world.pending if isinstance(effect, fx.CreateExtent)]
    assert creates
    world.auto_extents = True
    for effect in creates:
        world.create(effect)
    world.pump()
    assert a.answer(waiting).copied == 8


def test_the_budget_is_never_exceeded_and_small_rests_are_used() -> None:
    plain = config(extents=2, slots=8)
    rest = plain.extent_bytes * 2 // 3
    world = World(CoreConfig(arena_bytes=plain.arena_bytes + rest, extent_bytes=plain.extent_bytes))
    a = world.engine()
    a.register(namespace())
    for number in range(6):
        a.save(chain(f"n{number}", 8))
    stats = world.core.stats()
    assert stats["arena_used_bytes"] <= stats["arena_bytes"]
    assert stats["extents"] == 3
    assert stats["slots_held"] > 16


def test_an_extent_that_cannot_be_made_is_no_room_and_is_tried_again_later() -> None:
    world = World(config(extents=4, slots=4), auto_extents=False)
    a = world.engine()
    body = a.register_body(namespace())
    assert body.memory is not None
    world.core.pool_offered(a.process, a.pool, body.memory.size_bytes)
    registering = a.send(body)
    world.pump()
    (effect,) = world.pending
    assert isinstance(effect, fx.CreateExtent)
    world.pending.clear()
    world.create(effect, "the disk is full")
    world.pump()
    error = a.replies[registering].error
    assert error is not None
    assert error.code is ErrorCode.NO_ROOM
    assert world.core.stats()["extents_failed"] == 1
    assert world.core.stats()["arena_used_bytes"] == 0
    world.core.check_integrity()
    world.auto_extents = True
    world.step(2 * SECOND)
    assert a.ask(body).extents == 1


def test_nobody_waits_for_files_that_cannot_be_made_now() -> None:
    """The budget has room, the file system has not: nothing would wake who waited for that."""
    world = World(config(extents=4, slots=4))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    assert a.save(chain("x", 3)) == 3
    world.auto_extents = False
    storing = a.send(a.store_body(chain("y", 4)))
    world.pump()
    creates = [effect for effect in world.pending if isinstance(effect, fx.CreateExtent)]
    world.pending.clear()
    for effect in creates:
        world.create(effect, "extent 2: no space left")
    world.pump()
    assert a.answer(storing).copied < 4
    body = b.register_body(namespace("other"))
    assert body.memory is not None
    world.core.pool_offered(b.process, b.pool, body.memory.size_bytes)
    registering = b.send(body)
    world.pump()
    error = b.replies[registering].error  # at once, not when somebody gives up waiting
    assert error is not None
    assert error.code is ErrorCode.NO_ROOM
    assert error.retryable
    assert "extent 2: no space left" in error.message
    again = a.send(a.store_body(chain("z", 4)))
    world.pump()
    assert again in a.replies
    world.auto_extents = True
    world.step(2 * SECOND)
    assert b.ask(body).extents == 1


def test_an_engine_of_many_shards_gets_shorter_extents_and_fits() -> None:
    """Eight ranks of three groups in an arena of twenty extents, as long as they are set."""
    mib = 1 << 20
    world = World(CoreConfig(arena_bytes=20 * mib, extent_bytes=mib), check=False)
    groups = tuple(LayerGroup(layers=(n,), page_bytes=PAGE) for n in range(3))
    space = namespace(ranks=8, groups=groups)
    ranks = [world.engine("a", rank, pages=64) for rank in range(8)]
    for engine in ranks:
        engine.register(space)
    sizes = {one.geometry.file_bytes for one in world.extents.values()}
    assert max(sizes) <= 20 * mib // (4 * 24)
    keys = chain("x", 60)
    for engine in ranks:
        for shard in space.shards_of_rank(engine.rank):
            assert engine.save(keys, shard=shard) == 60
    assert ranks[0].lookup(keys).ready == 60
    b = world.engine("b")  # one shard: extents of the length that was set
    b.register(namespace("other"))
    assert max(one.geometry.file_bytes for one in world.extents.values()) > mib // 2
    world.core.check_integrity()


def test_extents_of_many_shards_are_not_cut_to_nothing() -> None:
    world = World(CoreConfig(arena_bytes=1 << 20, extent_bytes=1 << 18), check=False)
    groups = tuple(LayerGroup(layers=(n,), page_bytes=PAGE) for n in range(8))
    a = world.engine()
    a.register(namespace(groups=groups))
    assert all(one.geometry.num_slots > 8 for one in world.extents.values())


def test_extents_are_wanted_near_the_rank_that_stores_into_them() -> None:
    world = World(config(extents=8, slots=4), auto_extents=True)
    space = namespace(ranks=3)
    for rank, node in ((0, 1), (1, None), (2, 0)):
        engine = world.engine("a", rank=rank)
        body = replace(engine.register_body(space), numa_node=node)
        assert body.memory is not None
        world.core.pool_offered(engine.process, engine.pool, body.memory.size_bytes)
        engine.send(body)
        world.pump()
    wanted = {e.geometry.shard: e.numa_node for e in world.log if isinstance(e, fx.CreateExtent)}
    assert wanted == {0: 1, 1: None, 2: 0}


def test_a_reader_does_not_say_where_extents_lie_and_the_last_writer_does() -> None:
    world = World(config(extents=8, slots=4), auto_extents=True)
    reader = world.engine("r")
    reader.ask(m.RegisterKvCache(namespace=namespace(), rank=0, memory=None, pools=(), numa_node=3))
    first, second = world.engine("a"), world.engine("b")
    for engine, node in ((first, 1), (second, None)):
        body = replace(engine.register_body(namespace()), numa_node=node)
        assert body.memory is not None
        world.core.pool_offered(engine.process, engine.pool, body.memory.size_bytes)
        engine.session = engine.ask(body).session
        engine.report()
    second.save(chain("x", 7))
    made = [e.numa_node for e in world.log if isinstance(e, fx.CreateExtent)]
    assert made[0] is None
    assert set(made[1:]) == {1}


def test_waiters_of_a_demand_hear_once_however_often_it_is_given_up() -> None:
    world = World(config(extents=2, slots=4))
    engine = world.engine("a")
    engine.register(namespace("one"))
    growth = world.core._state.growth
    owner = next(iter(world.core._state.roster.owners.values()))
    heard: list[bool] = []
    demand = Demand(owner, 0, waiters=[heard.append])
    growth.give_up(demand)
    growth.give_up(demand)  # as a run of the reclaimer that ends after ``serve`` gave it up
    assert heard == [False]
