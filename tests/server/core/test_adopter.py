"""What a new server takes over, what it leaves out, and what it says of it."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.extents import checksums
from protocol.ids import ExtentId
from protocol.messages import StopReason
from protocol.namespace import LayerGroup, fingerprint
from server.core import effects as fx
from server.core.adoption import HOLDS_NOTHING, FoundExtent, Heritage, PartyId
from tests.server.core import reborn
from tests.server.core.world import PAGE, SECOND, Engine, World, chain, config, namespace


def server(extents: int = 8, slots: int = 8, **fields: Any) -> tuple[World, Engine]:
    world = World(config(extents, slots, **fields))
    engine = world.engine("a")
    engine.register(namespace())
    return world, engine


def next_server(old: World, extents: int = 8, slots: int = 8, **fields: Any) -> tuple[World, Any]:
    """With nobody left of the old one's time."""
    reborn.kill(old)
    old.strangers.clear()
    return reborn.reborn(old, config(extents, slots, **fields))


def hits(world: World, *names: str, length: int = 8) -> list[int]:
    engine = world.engine("q")
    engine.register(namespace())
    found = []
    for name in names:
        keys = chain(name, length)
        reply = engine.lookup(keys)
        found.append(reply.ready)
        if reply.ready:
            engine.retrieve(keys, reply.lease, 0, reply.ready)  # checks every byte
            engine.release(reply.lease)
        engine.end()
    engine.die()
    return found


# --- the same hits --------------------------------------------------------------------------------


def test_the_same_chunks_are_hit_and_their_bytes_are_right() -> None:
    world, a = server(extents=12)
    for name in ("x", "y"):
        assert a.save(chain(name, 20)) == 20
    world, adoption = next_server(world, extents=12)
    assert (adoption.num_chunks, adoption.num_records, adoption.num_records_dropped) == (40, 40, 0)
    assert world.core.stats()["adopted_chunks"] == 40
    assert hits(world, "x", "y", "z", length=20) == [20, 20, 0]
    world, adoption = next_server(world, extents=12)
    assert hits(world, "x", "y", length=20) == [20, 20]


def test_whatever_the_ranks_groups_and_windows() -> None:
    space = namespace(
        "big",
        ranks=2,
        groups=(
            LayerGroup(layers=(0,), page_bytes=PAGE),
            LayerGroup(layers=(1,), page_bytes=PAGE, window_tokens=64),
        ),
    )
    world = World(config(extents=40))
    ranks = [world.engine("a", rank) for rank in range(2)]
    for engine in ranks:
        engine.register(space)
    keys = chain("x", 10)
    for engine in ranks:
        full, window = space.shards_of_rank(engine.rank)
        assert engine.save(keys, shard=full) == 10
        assert engine.save(keys, start=7, shard=window) == 10
    world, adoption = next_server(world, extents=40)
    assert adoption.num_chunks == 10
    assert adoption.num_records == 26
    again = [world.engine("b", rank) for rank in range(2)]
    for engine in again:
        engine.register(space)
    assert again[0].lookup(keys).ready == 10
    # The window's first two chunks are not there, so nothing shorter than nine fits.
    assert again[0].lookup(keys[:8]).ready == 0


def test_new_chunks_get_newer_generations_and_new_extents_newer_ids() -> None:
    world, a = server()
    a.save(chain("x", 20))
    newest = max(max(one.generations) for one in world.extents.values())
    highest = max(world.extents)
    world, _ = next_server(world, slots=20)
    b = world.engine("b")
    b.register(namespace())
    b.save(chain("y", 30))
    fresh = [one for number, one in world.extents.items() if number > highest]
    assert fresh
    born = [one for shadow in fresh for one in shadow.generations if one]
    assert min(born) > newest


def test_generations_of_chunks_that_were_forgotten_are_not_given_again() -> None:
    """Or a late reader's check could not tell other bytes in its slot from those it was told of."""
    world, a = server()
    assert a.save(chain("x", 8)) == 8
    told = dict(enumerate(world.extents[1].generations))
    a.ask(m.Delete(fingerprint=fingerprint(namespace()), keys=chain("x", 8)[4]))
    world, adoption = next_server(world)
    assert adoption.num_chunks == 4
    b = world.engine("b")
    b.register(namespace())
    assert b.save(chain("y", 4)) == 4
    again = dict(enumerate(world.extents[1].generations))
    reused = [slot for slot in told if again[slot] != told[slot]]
    assert len(reused) == 4
    assert min(again[slot] for slot in reused) > max(told.values())


def test_ids_of_files_that_could_not_be_used_are_not_given_again() -> None:
    world, a = server()
    a.save(chain("x", 4))
    reborn.kill(world)
    found = replace(reborn.heritage(world), next_extent=500, parties=[])
    core = World(config()).core
    core.adopt(found, world.now_ns)
    assert core._state.growth._next_extent == 500


# --- what is left out -----------------------------------------------------------------------------


def test_of_too_much_the_most_recently_used_stays_together_with_its_ancestors() -> None:
    world, a = server(extents=8, slots=8)
    x = chain("x", 24)
    a.save(x[:8])  # the oldest extent: of use to what continues it last
    world.step(SECOND)
    a.save(chain("old", 24))
    world.step(SECOND)
    assert a.save(x) == 24
    size = config(4, 8)
    reborn.kill(world)
    world.strangers.clear()
    world, adoption = reborn.reborn(world, size)
    dropped = set(adoption.dropped.values())
    assert dropped <= {"no room in the arena", HOLDS_NOTHING}
    assert "no room in the arena" in dropped
    assert world.core.stats()["arena_used_bytes"] <= size.arena_bytes
    assert hits(world, "x", length=24) == [24]
    assert sum(adoption.records_dropped.values()) == 48 - adoption.num_records


def test_a_larger_arena_or_other_extents_take_all() -> None:
    for extents, slots in ((20, 8), (5, 24), (30, 3)):
        world, a = server()
        a.save(chain("x", 30))
        world, adoption = next_server(world, extents, slots)
        assert adoption.num_chunks == 30, (extents, slots)
        assert hits(world, "x", length=30) == [30]


def test_extents_that_are_no_namespaces_or_contradict_it_are_dropped() -> None:
    world, a = server()
    a.save(chain("x", 4))
    reborn.kill(world)
    found = reborn.heritage(world)
    (one,) = (extent for extent in found.extents if extent.records["checksum"].any())
    cut, name = one.geometry, one.geometry.fingerprint

    def adopt(**fields: Any) -> dict[ExtentId, str]:
        geometry = replace(cut, **fields)
        heritage = Heritage(found.namespaces, [FoundExtent(geometry, one.records)], [])
        return World(config()).core.adopt(heritage, SECOND).dropped

    assert adopt() == {}
    number = cut.extent
    assert adopt(fingerprint=b"?" * 16) == {number: "of an unknown namespace"}
    for wrong in (
        {"shard": 1},
        {"chunk_blocks": 2},
        {"payload_bytes": PAGE - 1},
        {"extent": ExtentId((1 << 31) + 5)},
    ):
        dropped = adopt(**wrong)
        assert list(dropped.values()) == ["contradicts its namespace"], wrong
    core = World(config()).core
    core.adopt(Heritage(found.namespaces, [], []), SECOND)
    assert core.take_effects() == [fx.DropNamespace(name)]


def test_no_more_namespaces_than_are_kept_and_the_idlest_go() -> None:
    world = World(config(extents=12))
    for name in ("first", "second", "third"):
        engine = world.engine(name)
        engine.register(namespace(name))
        engine.save(chain("x", 4))
        world.step(SECOND)
    world, adoption = next_server(world, extents=12, max_namespaces=2)
    owners = world.core._state.roster.owners
    assert set(owners) == {fingerprint(namespace(name)) for name in ("second", "third")}
    assert set(world.namespaces) == set(owners)
    assert "too many namespaces" in adoption.dropped.values()
    late = world.engine("late")
    body = late.register_body(namespace("fourth"))
    world.core.pool_offered(late.process, late.pool, body.memory.size_bytes)  # type: ignore[union-attr]
    assert late.error(body) is ErrorCode.LIMIT_EXCEEDED


def test_what_was_left_out_is_voided_so_that_it_never_comes_back() -> None:
    world, a = server(extents=4)
    a.save(chain("x", 8))
    shadow = next(one for one in world.extents.values() if one.records[0] is not None)
    shadow.records[3] = None  # the machine lost one
    world, adoption = next_server(world, extents=4)
    assert adoption.records_dropped == {"without its ancestors": 4}
    assert hits(world, "x") == [3]
    b = world.engine("b")
    b.register(namespace())
    assert b.save(chain("x", 4)) == 4
    world, adoption = next_server(world, extents=4)
    assert adoption.num_records_dropped == 0
    assert hits(world, "x") == [4]


def test_what_was_evicted_before_a_clear_or_a_delete_does_not_come_back() -> None:
    for clear in (True, False):
        world, a = server(extents=1, slots=16)
        a.save(chain("x", 4) + chain("y", 20)[4:12])
        a.save(chain("z", 12))  # evicts from the end of the longer chain
        space = fingerprint(namespace())
        assert a.lookup(chain("x", 4)).ready >= 1
        a.end()
        body = m.Clear() if clear else m.Delete(fingerprint=space, keys=chain("x", 1)[0])
        a.ask(body)
        world, _ = next_server(world, extents=1, slots=16)
        assert hits(world, "x") == [0]
        assert hits(world, "z", length=12) == [0 if clear else 12]
        held = reborn.held(world.core).get(space, {})
        names = {key for key, _ in held}
        assert names == (set() if clear else set(chain("z", 12)))


def test_a_torn_record_is_counted_and_its_slot_is_free() -> None:
    world, a = server(extents=4)
    a.save(chain("x", 8))
    reborn.kill(world)
    found = reborn.heritage(world)
    one = next(extent for extent in found.extents if extent.records["checksum"].any())
    last = int(np.flatnonzero(one.records["checksum"])[-1])
    one.records["stamp"][last] += 1
    core = World(config(4)).core
    adoption = core.adopt(replace(found, parties=[]), SECOND)
    assert adoption.records_dropped == {"torn": 1}
    assert adoption.num_chunks == 7
    (voided,) = (effect for effect in core.take_effects() if isinstance(effect, fx.VoidRecords))
    assert voided.slots.tolist() == [last]
    core.check_integrity()


# --- what goes on ---------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first_as_before() -> None:
    world, a = server(extents=4, slots=8)
    for name in ("one", "two", "three"):
        world.step(SECOND)
        a.save(chain(name, 8))
    world, _ = next_server(world, extents=4, slots=8)
    b = world.engine("b")
    b.register(namespace())
    while b.store(chain("new", 16)).stop is not StopReason.NONE:
        b.commit(b.last_store, 16)
    b.commit(b.last_store, 16)
    assert hits(world, "three") == [8]
    assert hits(world, "one")[0] < 8


def test_times_of_another_boot_keep_their_order_and_lie_in_the_past() -> None:
    world, a = server(extents=4)
    world.step(10**6 * SECOND)
    a.save(chain("x", 4))
    world.step(SECOND)
    a.save(chain("y", 4))
    reborn.kill(world)
    found = replace(reborn.heritage(world), parties=[])
    core = World(config(4)).core
    now_ns = 5 * SECOND
    core.adopt(found, now_ns)
    (owner,) = core._state.roster.owners.values()
    x, y = (owner.index.stamp[owner.index.find(chain(name, 4)[3])] for name in "xy")
    assert y == now_ns // 1000
    assert 0 < y - x - 1_000_000 < 1000
    core.check_integrity()


def test_chunks_that_lack_a_rank_get_their_time_again_and_then_go_first() -> None:
    space = namespace("tp", ranks=2)
    world = World(config(extents=4, slots=8))
    ranks = [world.engine("a", rank) for rank in range(2)]
    for engine in ranks:
        engine.register(space)
    ranks[0].save(chain("half", 4))
    world.step(SECOND)
    for engine in ranks:
        engine.save(chain("whole", 4))
    world, _ = next_server(world, extents=4, slots=8)
    owner = next(iter(world.core._state.roster.owners.values()))
    half, whole = (owner.index.find(chain(name, 4)[3]) for name in ("half", "whole"))
    assert owner.index.lacks(half)
    assert not owner.index.lacks(whole)
    owner.index.touch(half, world.now_ns // 1000 + 10**9)  # however recently used
    late_us = world.now_ns // 1000 + 61 * 10**6
    can_go = world.core._state.arena.evictable
    taken, _ = owner.leaves.take(late_us, lambda node: can_go(owner, node))
    assert taken == half
    owner.leaves.offer(half)


def test_an_owner_without_engines_is_forgotten_when_it_is_empty() -> None:
    world, a = server()
    a.save(chain("x", 8))
    world, _ = next_server(world)
    operator = world.engine("o")
    space = fingerprint(namespace())
    assert operator.ask(m.Clear(fingerprint=space)).chunks == 8
    assert world.core.stats()["namespaces"] == 0
    assert world.core.stats()["arena_used_bytes"] == 0
    assert space not in world.namespaces
    assert all(one.removed for one in world.extents.values())


def test_nothing_found_is_nothing_adopted() -> None:
    core = World(config()).core
    was = gc.isenabled()
    adoption = core.adopt(Heritage({}, [], []), SECOND)
    assert (adoption.kept, adoption.dropped, adoption.num_chunks) == ([], {}, 0)
    assert core.take_effects() == []
    assert gc.isenabled() is was
    core.party_gone(PartyId(3), SECOND)


def test_records_of_a_ring_of_parents_do_not_hold_up_the_start() -> None:
    world, a = server()
    a.save(chain("x", 4))
    reborn.kill(world)
    found = replace(reborn.heritage(world), parties=[])
    one = next(extent for extent in found.extents if extent.records["checksum"].any())
    where = np.flatnonzero(one.records["checksum"])
    rows = one.records[where]
    rows["parent"][0] = rows["key"][-1]
    rows["checksum"] = checksums(rows)
    one.records[where] = rows
    adoption = World(config()).core.adopt(found, SECOND)
    assert adoption.dropped[one.geometry.extent] == HOLDS_NOTHING
    assert adoption.records_dropped == {"without its ancestors": 4}


@pytest.mark.parametrize("num", [1, 7])
def test_an_extent_that_holds_nothing_is_given_back(num: int) -> None:
    world, a = server()
    a.save(chain("x", num))
    a.ask(m.Delete(fingerprint=fingerprint(namespace()), keys=chain("x", 1)[0]))
    world, adoption = next_server(world)
    assert set(adoption.dropped.values()) == {HOLDS_NOTHING}
    assert adoption.kept == []
    assert world.namespaces == {}
