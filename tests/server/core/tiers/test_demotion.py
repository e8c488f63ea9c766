"""Policies: at once, ahead of eviction, after some uses, never; and what came from another tier."""

from __future__ import annotations

from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers.policy import Policy
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import PAGE, SECOND, Engine, chain, namespace

NAME = fingerprint(namespace())


def begin(world: TierWorld) -> Engine:
    engine = world.engine()
    engine.register(namespace())
    return engine


def keys_in(world: TierWorld, number: int = 0) -> set[bytes]:
    return {name[1] for name in world.tiers[number].store}


def test_the_oldest_are_written_ahead_of_their_eviction_and_not_before() -> None:
    world = TierWorld(tiered(TierConfig("t", Policy.ON_EVICT), extents=1, slots=64))
    world.up()
    a = begin(world)
    for number in range(6):
        a.save(chain(f"{number}", 8))
        world.wait(SECOND)
    assert not world.tiers[0].store
    a.save(chain("6", 8))
    world.wait(SECOND)
    assert set(chain("0", 8)) <= keys_in(world)
    for number in range(7, 60):
        a.save(chain(f"{number}", 8))
        world.wait(SECOND)
    assert "tier_t_evicted_unsaved" not in world.core.stats()
    assert set(chain("40", 8)) <= keys_in(world)


def test_what_is_evicted_in_a_hurry_is_counted() -> None:
    world = TierWorld(tiered(TierConfig("t", Policy.ON_EVICT), extents=1, slots=64))
    world.up()
    a = begin(world)
    for number in range(30):
        a.save(chain(f"{number}", 8))
    stats = world.core.stats()
    assert stats["tier_t_evicted_unsaved"] == stats["evicted_chunks"] > 100


def test_a_cleaner_whose_tier_is_away_goes_on_when_it_is_back() -> None:
    world = TierWorld(tiered(TierConfig("t", Policy.ON_EVICT), extents=1, slots=64))
    a = begin(world)
    for number in range(7):
        a.save(chain(f"{number}", 8))
    world.wait(SECOND)
    assert world.core.next_timer_ns() is None  # nothing looks again and again meanwhile
    world.up()
    world.wait(SECOND)
    assert set(chain("0", 8)) <= keys_in(world)


def test_a_chain_is_written_when_it_was_used_often_enough() -> None:
    world = TierWorld(tiered(TierConfig("t", Policy.AFTER_USES, uses=2), extents=4, slots=16))
    world.up()
    a = begin(world)
    keys = chain("x", 6)
    a.save(keys)
    a.lookup(keys)
    assert not world.tiers[0].store
    a.lookup(keys[:4])
    assert not world.tiers[0].store
    a.lookup(keys)
    assert keys_in(world) == set(keys)
    heats = {
        bytes(row["key"]): int(row["heat"])
        for put in world.log
        if isinstance(put, fx.TierPut)
        for row in put.parts
    }
    assert (heats[keys[5]], heats[keys[3]], heats[keys[0]]) == (2, 1, 0)


def test_each_tier_has_its_own_policy() -> None:
    world = TierWorld(
        tiered(TierConfig("a", Policy.NONE), TierConfig("b"), TierConfig("c"), extents=4, slots=16)
    )
    for number in range(3):
        world.up(number)
    a = begin(world)
    keys = chain("x", 6)
    a.save(keys)
    assert [keys_in(world, number) for number in range(3)] == [set(), set(keys), set(keys)]
    bits = world.core._state.slots.tiers
    assert set(bits.tolist()) == {0, 0b110}


def test_every_shard_of_every_group_is_written_as_it_is_published() -> None:
    world = TierWorld(tiered(extents=16, slots=16, page_bytes=2 * PAGE))
    world.up()
    space = namespace("tp", ranks=2)
    engines = [world.engine(rank=rank) for rank in range(2)]
    for engine in engines:
        engine.register(space)
    keys = chain("x", 20)
    engines[1].save(keys)
    engines[0].save(keys)
    name = fingerprint(space)
    assert world.tiers[0].store == {(name, key, shard) for key in keys for shard in range(2)}


def test_what_another_owner_lost_its_room_to_is_remembered() -> None:
    world = TierWorld(tiered(extents=2, slots=8))
    a, b = begin(world), world.engine("b")
    a.save(chain("x", 16))
    world.step(3600 * SECOND)
    b.register(namespace("other"))
    b.save(chain("y", 8))
    state = world.core._state
    owner = state.roster.owners[NAME]
    assert state.ghosts.has(NAME, chain("x", 16)[-1])
    assert owner.index.find(chain("x", 16)[-1]) == -1
    assert world.core.stats()["tier_t_evicted_unsaved"] > 0
