"""What former processes may touch: found and read, never written, until the last one is gone."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from protocol.messages import StopReason
from protocol.namespace import fingerprint
from server.core.adoption import PartyId
from tests.server.core import reborn
from tests.server.core.world import SECOND, Engine, World, chain, config, namespace


def with_strangers(extents: int = 4, slots: int = 8, names: tuple[str, ...] = ("x",)) -> World:
    """A server after one that was killed with an engine reading and a copier alive."""
    old = World(config(extents, slots))
    engine = old.engine("a", pages=600)
    engine.register(namespace())
    length = min(slots, 500)
    for name in names:
        assert engine.save(chain(name, length)) == length
    found = engine.lookup(chain(names[0], length))
    engine.retrieve(chain(names[0], length), found.lease, 0, found.ready)
    reborn.kill(old)
    return reborn.reborn(old, old.config)[0]


def joined(world: World, space: Any = None) -> Engine:
    engine = world.engine("b", pages=600)
    engine.register(space or namespace())
    return engine


def leave(world: World, number: int = 0) -> None:
    gone = world.strangers.pop(number)
    world.core.party_gone(PartyId(gone.party), world.now_ns)
    world.pump()


def test_what_is_sealed_is_found_and_read() -> None:
    world = with_strangers()
    stats = world.core.stats()
    assert stats["parties_awaited"] == 2
    assert stats["arena_quarantined_bytes"] > 0
    b = joined(world)
    keys = chain("x", 8)
    found = b.lookup(keys)
    assert found.ready == 8
    b.retrieve(keys, found.lease, 0, 8)
    assert b.release(found.lease).chunks == 8
    world.check_claims()


def test_stores_go_elsewhere_and_where_there_is_nowhere_the_answer_is_no_room() -> None:
    world = with_strangers(extents=3)  # x in one of them, the second made ahead and empty
    b = joined(world)
    reply = b.store(chain("y", 20))
    assert reply.copied == 8  # one further extent is all that the budget has
    b.commit(b.last_store, 8)
    assert b.store(chain("z", 20)).copied == 8  # in place of y, which nobody seals
    b.commit(b.last_store, 8)
    assert b.lookup(chain("x", 8)).ready == 8
    b.end()
    world.check_claims()
    leave(world)
    leave(world)
    assert world.core.stats()["arena_quarantined_bytes"] == 0
    assert b.store(chain("w", 20)).copied == 20
    world.core.check_integrity()


def test_a_store_finds_no_room_at_once_when_all_of_it_is_sealed() -> None:
    world = with_strangers(extents=1)
    b = joined(world)
    reply = b.store(chain("y", 4))
    assert (reply.copied, reply.stop) == (0, StopReason.NO_ROOM)
    leave(world, 1)
    assert b.store(chain("y", 4)).stop is StopReason.NO_ROOM
    leave(world)
    assert b.store(chain("y", 4)).copied == 4


def test_a_registration_says_that_the_room_will_come() -> None:
    world = with_strangers(extents=1)
    other = world.engine("c")
    body = other.register_body(namespace("other"))
    world.core.pool_offered(other.process, other.pool, body.memory.size_bytes)  # type: ignore[union-attr]
    with pytest.raises(ReplyError, match="wait for processes of an earlier server") as caught:
        other.ask(body)
    assert caught.value.code is ErrorCode.NO_ROOM
    assert caught.value.retryable
    leave(world)
    leave(world)
    assert other.ask(body).session


def test_a_party_seals_only_its_namespaces() -> None:
    old = World(config(8, 8))
    for name in ("one", "two"):
        engine = old.engine(name)
        engine.register(namespace(name))
        engine.save(chain("x", 8))
    reborn.kill(old)
    old.strangers = [one for one in old.strangers if one.space == fingerprint(namespace("one"))]
    world, adoption = reborn.reborn(old, old.config)
    assert adoption.num_sealed == 1
    sealed = {
        extent.owner.namespace.model_id
        for extent in world.core._state.arena.extents.values()
        if extent.sealed
    }
    assert sealed == {"one"}


def test_clear_and_delete_forget_what_is_sealed_and_the_room_comes_later() -> None:
    for clear in (True, False):
        world = with_strangers(extents=2)
        operator = world.engine("o")
        space = fingerprint(namespace())
        first = chain("x", 1)[0]
        body = m.Clear(fingerprint=space) if clear else m.Delete(fingerprint=space, keys=first)
        assert operator.ask(body).chunks == 8
        assert not reborn.holdings(world, list(world.extents))
        stats = world.core.stats()
        assert stats["namespaces"] == 1
        assert stats["arena_used_bytes"] > 0
        leave(world)
        assert world.core.stats()["arena_used_bytes"] > 0
        leave(world)
        stats = world.core.stats()
        assert stats["namespaces"] == stats["arena_used_bytes"] == 0
        assert world.namespaces == {}


def test_files_that_were_not_taken_over_count_while_somebody_has_them_mapped() -> None:
    old = World(config(4, 8))
    engine = old.engine("a")
    engine.register(namespace())
    for name in ("x", "y", "z"):
        old.step(SECOND)
        engine.save(chain(name, 8))
    reborn.kill(old)
    world, adoption = reborn.reborn(old, config(2, 8))
    growth = world.core._state.growth
    lost = [number for number, why in adoption.dropped.items() if why == "no room in the arena"]
    assert lost
    assert growth.foreign_bytes >= sum(world.extents[one].geometry.file_bytes for one in lost)
    assert growth.free_bytes < 0
    quarantined = world.core.stats()["arena_quarantined_bytes"]
    assert quarantined == growth.used_bytes + growth.foreign_bytes
    leave(world)
    assert growth.foreign_bytes > 0
    leave(world)
    assert growth.foreign_bytes == 0
    assert growth.free_bytes == growth._config.arena_bytes - growth.used_bytes


def test_evicting_a_long_line_stops_at_what_is_sealed() -> None:
    world = with_strangers(extents=3, slots=16)
    b = joined(world)
    longer = chain("x", 16) + chain("w", 24)[16:]
    assert b.save(longer) == 24  # its end lies in an extent that nobody seals
    world.step(SECOND)
    assert b.save(chain("v", 8)) == 8
    assert b.save(chain("y", 16)) == 16  # in place of that end, and then not of what it continued
    assert b.lookup(longer).ready == 16


def test_nobody_is_evicted_for_room_that_mapped_files_of_old_engines_take() -> None:
    old = World(config(6, 8))
    for name in ("here", "gone"):
        engine = old.engine(name)
        engine.register(namespace(name))
        for number in range(2):
            old.step(SECOND)
            engine.save(chain(f"x{number}", 8))
    reborn.kill(old)
    # Only the engine of the older one is left, and there is room for the newer one alone.
    old.strangers = [one for one in old.strangers if one.space == fingerprint(namespace("here"))]
    world, _ = reborn.reborn(old, config(2, 8))
    state = world.core._state
    assert {one.owner.namespace.model_id for one in state.arena.extents.values()} == {"gone"}
    assert state.growth.free_bytes < 0
    late = world.engine("late")
    body = late.register_body(namespace("late"))
    world.core.pool_offered(late.process, late.pool, body.memory.size_bytes)  # type: ignore[union-attr]
    assert late.error(body) is ErrorCode.NO_ROOM
    assert world.core.stats()["chunks"] == 16
    leave(world)
    assert late.ask(body).session
    world.core.check_integrity()


def test_leaves_are_on_offer_again_slice_by_slice() -> None:
    world = with_strangers(extents=1, slots=600, names=("x",))
    world.strangers.pop()
    b = joined(world)
    assert b.store(chain("y", 4)).stop is StopReason.NO_ROOM
    state = world.core._state
    for party in range(1, 8):
        world.core.party_gone(PartyId(party), world.now_ns)
    world.strangers.clear()
    slices = 0
    while world.core.work(world.now_ns):
        slices += 1
        world.core.check_integrity()
    assert slices >= 2
    assert not state.slots.sealed.any()
    assert b.store(chain("y", 4)).copied == 4
    world.core.check_integrity()


def test_an_unknown_party_and_one_that_goes_twice_change_nothing() -> None:
    world = with_strangers()
    before = world.core.stats()
    world.core.party_gone(PartyId(99), world.now_ns)
    assert world.core.stats() == before
    leave(world)
    world.core.party_gone(PartyId(1), world.now_ns)
    world.pump()
    assert world.core.stats()["parties_awaited"] == 1


def test_shards_under_a_seal_do_not_count_when_one_is_said_to_be_ahead() -> None:
    space = namespace("tp", ranks=2)
    old = World(config(16, 8))
    ranks = [old.engine("a", rank, pages=64) for rank in range(2)]
    for engine in ranks:
        engine.register(space)
    for engine in ranks:
        engine.save(chain("x", 12))
    # All but one extent of the second rank are lost.
    mine = [one for one in old.extents.values() if one.geometry.shard == 1]
    assert len(mine) > 1
    for shadow in mine[1:]:
        shadow.removed = True
    reborn.kill(old)
    world, _ = reborn.reborn(old, old.config)
    new = [world.engine("b", rank) for rank in range(2)]
    for engine in new:
        engine.register(space)
    assert new[0].store(chain("y", 4)).copied == 4
