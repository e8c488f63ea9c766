"""Leaving: what an end frees, when, and what stays."""

from __future__ import annotations

from protocol import messages as m
from protocol.errors import ErrorCode
from server.core import effects as fx
from tests.server.core.world import World, chain, config, namespace


def test_b16_one_engine_leaves_and_the_other_goes_on() -> None:
    world = World(config())
    a, b, c = world.engine("a"), world.engine("b"), world.engine("c")
    for engine in (a, b, c):
        engine.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    a.ask(a.unregister_body())
    b.die()
    assert c.lookup(keys).ready == 6
    lease = c.lookup(keys).lease
    c.retrieve(keys, lease, 0, 6)
    c.release(lease)
    assert c.save(chain("y", 4)) == 4
    assert a.error(m.Lookup(session=a.session, request=1, start=0, keys=keys[0])) is (
        ErrorCode.UNKNOWN_SESSION
    )


def test_chunks_outlive_the_last_engine_of_a_namespace() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    a.die()
    b = world.engine("b")
    b.register(namespace())
    assert b.lookup(keys).ready == 6


def test_unregister_is_answered_when_copies_and_mapping_are_gone() -> None:
    world = World(config(), auto_copies=False, auto_pools=True)
    a = world.engine("a")
    a.register(namespace())
    stored = a.send(a.store_body(chain("x", 4)))
    world.pump()
    world.auto_pools = False
    gone = a.send(a.unregister_body())
    world.pump()
    assert gone not in a.replies
    world.finish(next(iter(world.jobs)))
    world.pump()
    assert a.replies[stored].error is not None
    assert gone not in a.replies
    (close,) = world.pending
    assert isinstance(close, fx.ClosePool)
    world.close(close)
    world.pump()
    assert isinstance(a.answer(gone), m.Done)
    assert any(isinstance(effect, fx.DropPoolOffer) for effect in world.log)


def test_a_dead_process_keeps_its_pool_until_its_copies_end() -> None:
    world = World(config(), auto_copies=False)
    a = world.engine("a")
    a.register(namespace())
    a.send(a.store_body(chain("x", 4)))
    world.pump()
    a.die()
    assert not any(isinstance(effect, fx.ClosePool) for effect in world.log)
    world.finish(next(iter(world.jobs)))
    world.pump()
    assert any(isinstance(effect, fx.ClosePool) for effect in world.log)
    stats = world.core.stats()
    assert (stats["sessions"], stats["slots_reserved"], stats["processes"]) == (0, 0, 0)


def test_a_quiet_process_keeps_all_and_begins_nothing() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 4)
    a.save(keys)
    lease = a.lookup(keys).lease
    a.retrieve(keys, lease, 0, 4)
    world.core.process_quiet(a.process, world.now_ns)
    world.pump()
    assert world.core.stats()["pinned_slots"] == 4
    assert a.error(a.store_body(keys)) is ErrorCode.UNAUTHENTICATED
    a.release(lease)
    assert world.core.stats()["pinned_slots"] == 0


def test_nothing_is_offered_while_a_rank_s_side_connection_is_gone() -> None:
    """It may end its session at any time, and with it the pins under which it would read."""
    world = World(config(extents=8, slots=16))
    ranks = [world.engine("a", rank) for rank in range(2)]
    for engine in ranks:
        engine.register(namespace(ranks=2))
    keys = chain("x", 6)
    for engine in ranks:
        engine.save(keys)
    lease = ranks[0].lookup(keys, 1).lease
    held = ranks[0].lookup(keys, 2).lease
    ranks[0].retrieve(keys, held, 0, 6)
    world.core.process_quiet(ranks[1].process, world.now_ns)
    world.pump()
    body = m.Retrieve(session=ranks[0].session, lease=lease, start=0, count=6)
    assert ranks[0].error(body) is ErrorCode.UNAVAILABLE
    assert ranks[0].lookup(keys, 3).ready == 0
    assert world.core.stats()["pinned_slots"] == 12
    again = world.engine("a", 1)
    again.ask(m.Unregister(session=ranks[1].session))
    again.register(namespace(ranks=2))
    assert world.core.stats()["pinned_slots"] == 6
    assert ranks[0].lookup(keys, 3).ready == 6
