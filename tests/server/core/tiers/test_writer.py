"""Writing to a tier: order, what the tier lacks above a chunk, tries, pauses, bounds, the end."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers import writer as module
from server.core.tiers.parts import Status
from tests.server.core import reborn
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import PAGE, SECOND, Engine, World, chain, config, namespace

NAME = fingerprint(namespace())


def begin(world: TierWorld) -> Engine:
    engine = world.engine()
    engine.register(namespace())
    return engine


def num_puts(world: TierWorld) -> int:
    return sum(isinstance(effect, fx.TierPut) for effect in world.log)


def names(keys: list[bytes]) -> set[tuple[bytes, bytes, int]]:
    return {(NAME, key, 0) for key in keys}


def test_what_is_published_is_written_and_nothing_stays_pinned() -> None:
    world = TierWorld(tiered(extents=16, slots=16))
    world.up()
    a = begin(world)
    keys = chain("x", 100)
    a.save(keys)
    assert world.tiers[0].store == names(keys)
    stats = world.core.stats()
    assert (stats["pinned_slots"], stats["tier_t_puts_waiting"]) == (0, 0)
    heats = {
        int(row["heat"]) for put in world.log if isinstance(put, fx.TierPut) for row in put.parts
    }
    assert heats == {0}


def test_what_a_tier_lacks_above_a_chunk_goes_before_it() -> None:
    world = TierWorld(tiered(extents=16, slots=16))
    a = begin(world)
    keys = chain("x", 100)
    a.save(keys[:90])
    writer = world.core._state.demotion.writers[0]
    while writer._queue:  # as after an outage: the tier was never given these
        writer._pop()
    world.up()
    assert not world.tiers[0].store
    a.save(keys, start=90)
    assert world.tiers[0].store == names(keys)


def test_a_write_that_fails_is_tried_again_a_few_times() -> None:
    world = TierWorld(tiered())
    world.up()
    a = begin(world)
    world.tiers[0].put_status = Status.ERROR
    a.save(chain("x", 1))
    puts = [effect for effect in world.log if isinstance(effect, fx.TierPut)]
    assert len(puts) == module.MAX_TRIES
    assert world.core.stats()["tier_t_puts_dropped"] == 1
    assert world.core.stats()["pinned_slots"] == 0
    world.tiers[0].put_status = Status.OK
    a.save(chain("x", 2), start=1)
    assert world.tiers[0].store == names(chain("x", 2))


def test_a_full_tier_is_given_a_pause_that_grows() -> None:
    world = TierWorld(tiered())
    world.up()
    a = begin(world)
    world.tiers[0].put_status = Status.NO_ROOM
    a.save(chain("x", 1))
    assert num_puts(world) == 1
    a.save(chain("y", 1))
    assert num_puts(world) == 1
    world.wait(SECOND)
    assert num_puts(world) == 2
    world.wait(SECOND)
    assert num_puts(world) == 2
    world.tiers[0].put_status = Status.OK
    world.wait(SECOND)
    assert world.tiers[0].store == names([*chain("x", 1), *chain("y", 1)])


def test_a_lost_porters_writes_are_done_by_the_next_one() -> None:
    world = TierWorld(tiered(), auto_tiers=False)
    world.up()
    a = begin(world)
    keys = chain("x", 5)
    a.save(keys)
    assert world.core.stats()["pinned_slots"] > 0
    world.down()
    assert world.core.stats()["pinned_slots"] == 0
    world.auto_tiers = True
    world.up()
    world.wait(0)
    assert world.tiers[0].store == names(keys)


def test_a_stuck_porter_keeps_its_slots_to_its_end() -> None:
    world = TierWorld(tiered(extents=1, slots=16), auto_tiers=False)
    world.up()
    a = begin(world)
    a.save(chain("x", 2))
    world.down(stuck_life=1)
    pinned = world.core.stats()["pinned_slots"]
    assert pinned > 0
    assert a.ask(m.Clear(fingerprint=NAME)).chunks == 2
    assert a.save(chain("y", 16)) == 16 - pinned
    world.gone(0, 1)
    world.pump()
    assert world.core.stats()["pinned_slots"] == 0
    assert a.save(chain("z", 16)) == 16


def test_a_store_never_waits_for_a_tier_that_hangs() -> None:
    world = TierWorld(tiered(extents=1, slots=16), auto_tiers=False)
    world.up()
    a = begin(world)
    for name in "abcdef":
        assert a.save(chain(name, 8)) == 8
    stats = world.core.stats()
    assert 0 < stats["pinned_slots"] <= 16 // 4
    assert stats["tier_t_evicted_unsaved"] > 0


def test_the_oldest_are_given_up_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED", 20)
    world = TierWorld(tiered(extents=16, slots=16))
    a = begin(world)
    for name in "abcdefgh":
        a.save(chain(name, 8))
    stats = world.core.stats()
    assert stats["tier_t_puts_waiting"] <= 20
    assert stats["tier_t_puts_dropped"] == 64 - stats["tier_t_puts_waiting"]


def test_a_server_that_is_about_to_end_writes_what_waits() -> None:
    world = TierWorld(tiered(extents=16, slots=16), auto_tiers=False)
    world.up()
    a = begin(world)
    keys = chain("x", 100)
    a.save(keys)
    world.core.begin_drain(world.now_ns)
    while not world.core.drained():
        world.answer(min(world.tier_jobs))
        world.pump()
    assert world.tiers[0].store == names(keys)


def test_a_server_does_not_wait_at_its_end_for_a_tier_that_is_away() -> None:
    world = TierWorld(tiered(extents=16, slots=16), auto_tiers=False)
    world.up()
    a = begin(world)
    a.save(chain("x", 100))
    world.core.begin_drain(world.now_ns)
    world.down()
    world.pump()
    assert world.core.stats()["tier_t_puts_waiting"] > 0
    assert world.core.drained()


def test_what_a_former_server_left_is_written_as_far_as_the_tier_lacks_it() -> None:
    old = World(config(extents=16, slots=16))
    a = old.engine()
    a.register(namespace())
    keys, others = chain("x", 100), chain("y", 20)
    a.save(keys)
    a.save(others)
    reborn.kill(old)
    world = TierWorld(
        tiered(extents=16, slots=16),
        now_ns=old.now_ns,
        extents=old.extents,
        namespaces=old.namespaces,
        strangers=old.strangers,
    )
    world.core.adopt(reborn.heritage(old), world.now_ns)
    world.tiers[0].store |= names(keys[:60])
    world.tiers[0].had |= names(keys[:60])
    world.up()
    assert world.tiers[0].store == names([*keys, *others])
    written = [effect for effect in world.log if isinstance(effect, fx.TierPut)]
    assert sum(len(put.parts) for put in written) == 40 + 20
    world.core.check_integrity()


def test_nothing_is_written_before_the_tier_said_what_it_has() -> None:
    world = TierWorld(tiered(extents=16, slots=16), auto_tiers=False)
    a = begin(world)
    keys = chain("x", 50)
    a.save(keys)
    writer = world.core._state.demotion.writers[0]
    while writer._queue:
        writer._pop()
    world.up()
    a.save([*keys, *chain("x", 51)[50:]], start=50)
    (probe,) = world.tier_jobs.values()
    assert isinstance(probe, fx.TierProbe)
    a.begin(m.Clear(fingerprint=NAME))  # while it is asked
    world.auto_tiers = True
    for number in list(world.tier_jobs):
        world.answer(number)
    world.pump()
    assert num_puts(world) == 0
    a.save(keys[:3])
    assert world.tiers[0].store == names(keys[:3])


def test_what_engines_left_behind_is_given_back_when_its_write_ends() -> None:
    world = TierWorld(tiered(), auto_tiers=False)
    world.up()
    a, b = begin(world), world.engine("b")
    b.register(namespace("other"))
    b.save(chain("x", 2))
    b.die()
    a.begin(m.Clear())
    assert world.core.stats()["namespaces"] == 2
    (put,) = (job for job in world.tier_jobs.values() if isinstance(job, fx.TierPut))
    world.answer(put.job)
    world.pump()
    assert world.core.stats()["namespaces"] == 1


def test_a_chunk_larger_than_a_job_does_not_wait_at_the_tier_while_its_parent_fails() -> None:
    world = TierWorld(tiered(TierConfig("t", window_bytes=5 * PAGE), slots=16), auto_tiers=False)
    world.up()
    engines = [world.engine("e", rank) for rank in range(2)]
    for engine in engines:
        engine.register(namespace(num_ranks=2))
    keys = chain("x", 2)
    for count in (1, 2):
        for shard, engine in enumerate(engines):
            engine.save(keys[:count], shard=shard)
    world.answer(world.flying(0, fx.TierPut)[0].job)
    world.pump()
    put = world.flying(0, fx.TierPut)[0]
    assert {name[1:] for name in world.names(put)} == {(keys[0], 1)}
    world.tiers[0].put_status = Status.CORRUPT
    world.answer(put.job)  # the world looks whether a chunk goes before the one it continues
    world.pump()
    world.tiers[0].put_status = Status.OK
    for _ in range(8):
        for put in world.flying(0, fx.TierPut):
            world.answer(put.job)
        world.pump()
    assert {(key, shard) for _, key, shard in world.tiers[0].store} == {
        (key, shard) for key in keys for shard in range(2)
    }


@pytest.mark.parametrize("slices", range(6))
def test_a_namespace_that_is_forgotten_while_the_writer_looks_is_written_all_the_same(
    slices: int,
) -> None:
    world = TierWorld(tiered(), auto_tiers=False)
    world.up()
    a = begin(world)
    seq = a.send(m.Delete(fingerprint=NAME, keys=chain("gone", 1)[0]))
    world.pump()
    (drop,) = world.flying(0, fx.TierDrop)
    assert a.save(chain("x", 1)) == 1
    world.core._state.demotion.writers[0].pump()
    for _ in range(slices):
        world.core.work(world.now_ns)
    world.answer(drop.job)
    world.pump()
    a.answer(seq)
    (put,) = world.flying(0, fx.TierPut)
    world.answer(put.job)
    world.pump()
    assert world.core.drained()
