"""Reserving: what follows what, slots that come back, and work in slices."""

from __future__ import annotations

import itertools

from protocol import messages as m
from server.core.reservations import FREE_BLOCKS
from tests.server.core.world import SECOND, World, chain, config, namespace


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
