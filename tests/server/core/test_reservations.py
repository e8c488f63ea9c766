"""Reserving: what follows what, slots that come back, and work in slices."""

from __future__ import annotations

import itertools

from protocol import messages as m
from protocol.namespace import LayerGroup
from server.core.reservations import FREE_BLOCKS
from tests.server.core.world import PAGE, SECOND, World, chain, config, namespace


def test_p07_only_what_follows_a_held_parent_is_stored() -> None:
    world = World(config(), auto_copies=False)
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    keys = chain("x", 13)
    first = a.send(a.store_body(keys, 0, 10))
    world.pump()
    assert len(world.jobs) > 0
    late = b.store_body(keys, 10)
    reply = b.ask(late)
    assert (reply.held, reply.copied, reply.stop) == (0, 0, m.StopReason.MISSING_PARENT)
    busy = b.ask(b.store_body(keys, 0))
    assert (busy.copied, busy.stop) == (0, m.StopReason.BUSY)
    a.die()
    assert first not in a.replies or a.replies[first].error is not None
    for job in list(world.jobs):
        world.finish(job)
    world.pump()
    assert b.lookup(keys).ready == 0
    assert world.core.stats()["slots_reserved"] == 0


def test_a_chain_that_contradicts_itself_stops_the_store() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    x, y = chain("x", 4), chain("y", 4)
    assert a.save(x) == 4
    reply = a.store([y[0], y[1], x[1]])
    assert (reply.copied, reply.stop) == (2, m.StopReason.MISSING_PARENT)
    a.commit(a.last_store, 2)
    reply = a.store([*chain("z", 2), chain("z", 1)[0]])
    assert (reply.copied, reply.stop) == (2, m.StopReason.MISSING_PARENT)


def test_a_withdrawn_store_frees_its_slots_in_slices_of_the_loop() -> None:
    world = World(config(extents=4, slots=256), check=False)
    a = world.engine()
    a.register(namespace())
    keys = chain("x", 200)
    assert a.store(keys).copied == 200
    reservations = world.core._state.reservations
    left = [len(reservations.by_slot)]
    a.send(m.Cancel(session=a.session, store=a.last_store))
    while world.core.work(world.now_ns):
        left.append(len(reservations.by_slot))
        world.core.check_integrity()
    left.append(len(reservations.by_slot))
    steps = [before - after for before, after in itertools.pairwise(left)]
    assert left[-1] == 0
    assert max(steps) <= FREE_BLOCKS
    assert world.core.stats()["chunks"] == 0


def test_chunks_of_another_shard_that_making_room_evicts_are_named_again() -> None:
    # Rank 1 continues what only rank 0 stored, in an arena so full that eviction must take some.
    world = World(config(extents=2, slots=8))
    space = namespace(ranks=2)
    a, b = world.engine("a", 0), world.engine("a", 1)
    a.register(space)
    b.register(space)
    keys = chain("x", 8)
    assert a.save(keys) == 8
    for name in "yzuv":
        world.step(SECOND)
        b.save(chain(name, 4))
        a.save(chain(name, 4))
    reply = b.store(keys)
    assert reply.held + reply.copied <= 8
    world.core.check_integrity()


def windowed() -> LayerGroup:
    return LayerGroup(layers=(1,), page_bytes=PAGE, window_tokens=64)


def test_a_window_is_saved_from_a_later_chunk_on_and_around_what_is_held() -> None:
    world = World(config(extents=8, slots=16))
    a = world.engine()
    a.register(namespace(groups=(LayerGroup(layers=(0,), page_bytes=PAGE), windowed())))
    keys = chain("x", 10)
    unknown = a.ask(a.store_body(keys, 5, 10, shard=1))
    assert (unknown.copied, unknown.stop) == (0, m.StopReason.MISSING_PARENT)
    assert a.save(keys, shard=0) == 10
    body = a.store_body(keys, 7, 8, shard=1)
    assert a.ask(body).copied == 1
    a.commit(body.store, 1)
    # Up to the one that is held, from there on past it: that is how a client goes on after BUSY.
    body = a.store_body(keys, 5, 10, shard=1)
    reply = a.ask(body)
    assert (reply.held, reply.copied, reply.stop) == (0, 2, m.StopReason.BUSY)
    a.commit(body.store, 2)
    body = a.store_body(keys, 7, 10, shard=1)
    reply = a.ask(body)
    assert (reply.held, reply.copied, reply.stop) == (1, 2, m.StopReason.NONE)
    a.commit(body.store, 2)
    assert a.lookup(keys).ready == 10
    assert a.lookup(keys[:6]).ready == 0  # chunk 4 of the window was never saved
    assert a.lookup(keys[:7]).ready == 7


def test_long_windows_that_are_held_already_are_counted() -> None:
    world = World(config(extents=8, slots=128), check=False)
    a = world.engine()
    a.register(namespace(groups=(windowed(),)))
    keys = chain("x", 200)
    assert a.save(keys) == 200
    again = a.store(keys)
    assert (again.held, again.copied, again.stop) == (200, 0, m.StopReason.NONE)


def test_window_keys_that_are_no_chain_are_not_held() -> None:
    world = World(config(extents=8, slots=16))
    a = world.engine()
    a.register(namespace(groups=(windowed(),)))
    x = chain("x", 4)
    assert a.save(x) == 4
    reply = a.store([x[2], *chain("y", 2)])
    assert (reply.held, reply.copied, reply.stop) == (0, 0, m.StopReason.MISSING_PARENT)
    reply = a.store([x[0], x[1], x[3]])
    assert (reply.held, reply.copied, reply.stop) == (2, 0, m.StopReason.MISSING_PARENT)
