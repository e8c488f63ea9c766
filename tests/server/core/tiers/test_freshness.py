"""Chains that are used: tiers are told, and what they lost is written again."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers import freshness as module
from server.core.tiers.freshness import ROUND_NS, ROUND_PART
from server.core.tiers.parts import Status
from server.core.tiers.policy import Policy
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import PAGE, SECOND, Engine, chain, namespace

NAME = fingerprint(namespace())


def begin(*tiers: TierConfig, slots: int = 32, **fields: bool) -> tuple[TierWorld, Engine]:
    world = TierWorld(tiered(*tiers, extents=4, slots=slots), **fields)
    for number in range(len(world.tiers)):
        world.up(number)
    engine = world.engine()
    engine.register(namespace())
    return world, engine


def touched(world: TierWorld) -> list[bytes]:
    """Keys that tiers were told of, in order."""
    touches = [effect for effect in world.log if isinstance(effect, fx.TierTouch)]
    return [job.keys[at : at + 16] for job in touches for at in range(0, len(job.keys), 16)]


def kept(world: TierWorld, number: int = 0) -> set[bytes]:
    return {name[1] for name in world.tiers[number].store}


def next_round(world: TierWorld) -> None:
    world.wait(ROUND_NS)


def test_what_l1_always_has_stays_young_below() -> None:
    # Else it is the first to go there, and after a reboot the hottest prefix is gone.
    world, engine = begin()
    hot = chain("hot", 8)
    engine.save(hot)
    for number in range(12):
        engine.save(chain(f"cold{number}", 4))
        engine.lookup(hot, request=number)
        next_round(world)
        world.tiers[0].lose_oldest(max(0, len(world.tiers[0].store) - 20))
    assert set(hot) <= kept(world)
    assert not set(chain("cold0", 4)) & kept(world)


def test_a_chain_is_told_from_its_start_on_and_once_in_a_round() -> None:
    world, engine = begin()
    keys = chain("x", 6)
    engine.save(keys)
    for request in range(3):
        engine.lookup(keys[:4], request=request)
    world.wait(SECOND)
    assert touched(world) == keys[:4]
    engine.lookup(keys, request=4)
    world.wait(SECOND)
    assert touched(world) == keys, "only what was not told yet"
    next_round(world)
    engine.lookup(keys, request=5)
    world.wait(SECOND)
    assert touched(world) == keys + keys


@pytest.mark.parametrize("policy", [Policy.WRITE_THROUGH, Policy.AFTER_USES])
def test_what_a_store_lost_is_written_again_when_it_is_used(policy: Policy) -> None:
    world, engine = begin(TierConfig("t", policy, uses=1))
    keys, other = chain("x", 6), chain("y", 3)
    engine.save(keys)
    engine.lookup(keys)
    engine.save(other)
    world.wait(SECOND)
    assert set(keys) <= kept(world)
    world.tiers[0].store.clear()  # as FLUSHALL does
    next_round(world)
    engine.lookup(keys, request=2)
    world.wait(SECOND)
    assert kept(world) == set(keys), "what nobody uses is not looked after"
    assert world.core.stats()["tier_t_values_lost"] == 6


def test_what_a_cleaner_wrote_and_the_store_lost_is_written_ahead_of_eviction_again() -> None:
    world, engine = begin(TierConfig("t", Policy.ON_EVICT), slots=16)
    keys = chain("x", 8)
    engine.save(keys)
    for number in range(7):
        engine.save(chain(f"{number}", 8))
    world.wait(SECOND)
    assert set(keys) <= kept(world)
    world.tiers[0].store.clear()
    next_round(world)
    engine.lookup(keys)
    world.wait(SECOND)
    for number in range(7, 20):
        engine.save(chain(f"{number}", 8))
        world.wait(SECOND)
    assert set(keys) <= kept(world)


def test_a_tier_that_comes_back_is_asked_at_once() -> None:
    world, engine = begin()
    keys = chain("x", 4)
    engine.save(keys)
    engine.lookup(keys)
    world.wait(2 * SECOND)
    world.down()
    world.tiers[0].store.clear()
    world.up()
    world.wait(SECOND)
    engine.lookup(keys, request=2)
    world.wait(SECOND)
    assert kept(world) == set(keys)


def test_a_round_ends_when_a_part_of_a_tier_was_carried() -> None:
    world, engine = begin()
    world.tiers[0].capacity_bytes = 32 * ROUND_PART * PAGE
    world.wait(11 * SECOND)  # a check-up tells
    keys = chain("x", 4)
    engine.save(keys)
    engine.lookup(keys)
    world.wait(2 * SECOND)
    engine.lookup(keys, request=2)
    world.wait(2 * SECOND)
    assert touched(world) == keys
    for number in range(8):
        engine.save(chain(f"{number}", 4))
    engine.lookup(keys, request=3)
    world.wait(SECOND)
    assert touched(world) == keys + keys


def test_what_a_tier_was_never_given_is_offered_when_nothing_waits() -> None:
    world, engine = begin()
    world.tiers[0].put_status = Status.ERROR
    keys = chain("x", 2)
    engine.save(keys)
    world.wait(40 * SECOND)
    assert world.core.stats()["tier_t_puts_dropped"] == 2
    world.tiers[0].put_status = Status.OK
    world.wait(40 * SECOND)
    assert not world.tiers[0].store
    engine.lookup(keys)
    world.wait(SECOND)
    assert kept(world) == set(keys)
    assert not touched(world), "and there was nothing to ask"


def test_what_was_given_up_behind_what_was_lost_is_written_with_it() -> None:
    world, engine = begin()
    keys = chain("x", 8)
    engine.save(keys[:4])
    world.tiers[0].put_status = Status.ERROR
    engine.save(keys)
    world.wait(40 * SECOND)
    world.tiers[0].put_status = Status.OK
    world.wait(40 * SECOND)
    assert kept(world) == set(keys[:4])
    world.tiers[0].store.clear()
    next_round(world)
    engine.lookup(keys)
    world.wait(SECOND)
    assert kept(world) == set(keys)


def test_questions_have_pauses_and_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOUCHED", 4)
    monkeypatch.setattr(module, "MAX_NOTED", 3)
    world, engine = begin(slots=64)
    for number in range(6):
        engine.save(chain(f"{number}", 8))
    world.auto_tiers = False
    for number in range(6):
        engine.lookup(chain(f"{number}", 8), request=number)
    assert world.core.stats()["chains_to_look_after"] <= 3
    world.auto_tiers = True
    for job in world.live(0, fx.TierTouch):
        world.answer(job.job)
    world.pump()
    assert len(touched(world)) == 4
    world.wait(3 * module.PAUSE_NS + module.PAUSE_NS // 2)
    assert 12 <= len(touched(world)) <= 20
    world.wait(SECOND)
    assert world.core.stats()["chains_to_look_after"] == 0


@pytest.mark.parametrize("what", ["clear", "delete", "die", "fail"])
def test_whatever_happens_meanwhile(what: str) -> None:
    world, engine = begin(auto_tiers=False)
    keys = chain("x", 6)
    engine.save(keys)
    for put in world.live(0, fx.TierPut):
        world.answer(put.job)
    world.pump()
    engine.lookup(keys)
    (job,) = world.live(0, fx.TierTouch)
    world.tiers[0].store.clear()
    if what == "clear":
        engine.begin(m.Clear(fingerprint=NAME))
    elif what == "delete":
        engine.begin(m.Delete(fingerprint=NAME, keys=keys[2]))
    elif what == "die":
        world.down()
        world.up()
    else:
        world.tiers[0].fails = True
    if job.job in world.tier_jobs:
        world.answer(job.job)
    world.auto_tiers, world.tiers[0].fails = True, False
    for number in list(world.tier_jobs):
        if number in world.tier_jobs:
            world.answer(number)
    world.pump()
    world.wait(SECOND)
    world.core.check_integrity()
    expected = {"clear": set(), "delete": set(keys[:2])}.get(what)
    assert expected is None or kept(world) == expected
    next_round(world)
    engine.lookup(keys, request=2)
    world.wait(SECOND)
    assert kept(world) == (set(keys) if expected is None else expected)


def test_every_part_of_a_chunk_is_told_and_only_lost_ones_are_written() -> None:
    world = TierWorld(tiered(extents=16, slots=16, page_bytes=2 * PAGE))
    world.up()
    space = namespace("tp", ranks=2)
    engines = [world.engine(rank=rank) for rank in range(2)]
    for engine in engines:
        engine.register(space)
    keys, name = chain("x", 5), fingerprint(space)
    for engine in engines:
        engine.save(keys)
    lost = (name, keys[3], 1)
    world.tiers[0].store.discard(lost)
    before = len(world.log)
    engines[0].lookup(keys)
    world.wait(SECOND)
    puts = [effect for effect in world.log[before:] if isinstance(effect, fx.TierPut)]
    assert [name for put in puts for name in world.names(put)] == [lost]


def test_what_is_still_on_its_way_is_not_lost() -> None:
    world, engine = begin(auto_tiers=False)
    keys = chain("x", 3)
    engine.save(keys)
    engine.lookup(keys)
    world.wait(SECOND)
    for touch in world.live(0, fx.TierTouch):  # a porter's threads overtake one another
        world.answer(touch.job)
    world.pump()
    while world.tier_jobs:
        world.answer(next(iter(world.tier_jobs)))
        world.pump()
    assert kept(world) == set(keys)
    assert world.core.stats().get("tier_t_values_lost", 0) == 0
    assert len([effect for effect in world.log if isinstance(effect, fx.TierPut)]) == 1


def test_two_tiers_are_told_at_once() -> None:
    world, engine = begin(TierConfig("a"), TierConfig("b"), auto_tiers=False)
    keys = chain("x", 3)
    engine.save(keys)
    for number in list(world.tier_jobs):
        world.answer(number)
    world.pump()
    engine.lookup(keys)
    assert [job.tier for job in world.tier_jobs.values() if isinstance(job, fx.TierTouch)] == [0, 1]


def test_a_tier_that_does_not_answer_does_not_hold_the_others_up() -> None:
    world, engine = begin(TierConfig("a"), TierConfig("b"), auto_tiers=False)
    chains = [chain(f"{number}", 3) for number in range(4)]
    for keys in chains:
        engine.save(keys)
        while world.tier_jobs:
            world.answer(next(iter(world.tier_jobs)))
            world.pump()

    def look(numbers: range) -> None:
        for number in numbers:
            engine.lookup(chains[number], request=number)
        for _ in range(20):
            for job in world.live(1, fx.TierTouch):
                world.answer(job.job)
            world.wait(SECOND)

    look(range(3))
    asked = [effect for effect in world.log if isinstance(effect, fx.TierTouch)]
    assert [job.keys[:16] for job in asked if job.tier == 1] == [keys[0] for keys in chains[:3]]
    assert len([job for job in asked if job.tier == 0]) == 1, "no second question before an answer"
    assert world.core.stats()["chains_to_look_after"] == 0
    (late,) = world.live(0, fx.TierTouch)
    world.answer(late.job)
    world.pump()
    look(range(3, 4))
    assert [job.keys[:16] for job in world.live(0, fx.TierTouch)] == [chains[3][0]]
