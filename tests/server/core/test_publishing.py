"""Publishing: only COMMIT does it, and only what still follows a held parent."""

from __future__ import annotations

import itertools

from protocol import messages as m
from protocol.errors import ErrorCode
from server.core.admission import SLICE_BLOCKS
from tests.server.core.world import World, chain, config, namespace


def test_nothing_is_found_before_commit() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 5)
    assert a.store(keys).copied == 5
    assert a.lookup(keys).ready == 0
    assert a.commit(a.last_store, 3).published == 3
    assert a.lookup(keys).ready == 3
    assert world.core.stats()["slots_reserved"] == 0
    assert a.error(m.Commit(session=a.session, store=a.last_store, count=1)) is (
        ErrorCode.UNKNOWN_STORE
    )


def test_p10_a_commit_after_clear_brings_nothing_back() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 6)
    assert a.save(keys[:3]) == 3
    assert a.store(keys).copied == 3
    assert a.ask(m.Clear()).chunks == 6
    reply = a.commit(a.last_store, 3)
    assert (reply.published, reply.stop) == (0, m.StopReason.CLEARED)
    assert a.lookup(keys).ready == 0
    assert world.core.stats()["slots_held"] == 0


def test_p10_a_commit_after_delete_brings_nothing_back() -> None:
    world = World(config())
    a = world.engine("a")
    name = a.register(namespace())
    assert name
    keys = chain("x", 6)
    a.save(keys[:3])
    a.store(keys)
    fingerprint = next(iter(world.core._state.roster.owners))
    assert a.ask(m.Delete(fingerprint=fingerprint, keys=keys[1])).chunks >= 2
    reply = a.commit(a.last_store, 3)
    assert (reply.published, reply.stop) == (0, m.StopReason.CLEARED)
    assert a.lookup(keys).ready == 1
    assert a.save(keys) == 6


def test_a_commit_of_many_is_published_in_slices_and_generations_never_repeat() -> None:
    world = World(config(extents=4, slots=256), check=False)
    a = world.engine()
    a.register(namespace())
    for name in ("x", "y"):
        assert a.store(chain(name, 200)).copied == 200
        begun = world.core.stats()["slots_held"]
        a.send(m.Commit(session=a.session, store=a.last_store, count=200))
        held = [begun]
        while world.core.work(world.now_ns):
            held.append(world.core.stats()["slots_held"])
        world.pump()
        held.append(world.core.stats()["slots_held"])
        assert held[-1] == begun + 200
        assert max(after - before for before, after in itertools.pairwise(held)) <= SLICE_BLOCKS
    generations = world.core._state.slots.generation
    used = generations[generations > 0].tolist()
    assert sorted(used) == list(range(1, 401))
    world.core.check_integrity()
