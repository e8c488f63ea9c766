"""CLEAR of all reaches namespaces that only tiers have, or says which tiers may have more."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.ids import Fingerprint
from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers import unknown as module
from server.core.tiers.policy import Policy
from server.core.tiers.unknown import LIST_NS
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import SECOND, Engine, chain, namespace

NAME, OTHER = fingerprint(namespace()), fingerprint(namespace("other"))
DISK = TierConfig("t", lists=True)


def fill(world: TierWorld, number: int = 0) -> None:
    """As a former server left it."""
    tier = world.tiers[number]
    for name in (NAME, OTHER):
        tier.store |= {(name, key, 0) for key in chain("x", 3)}
        assert tier.described is not None
        tier.described[name] = b"it"


def begin(*tiers: TierConfig, **fields: bool) -> tuple[TierWorld, Engine]:
    world = TierWorld(tiered(*(tiers or (DISK,))), **fields)
    for number in range(len(world.tiers)):
        fill(world, number)
        world.up(number)
    return world, world.engine()


def test_all_is_all() -> None:
    world, engine = begin()
    engine.register(namespace())
    assert engine.save(chain("y", 2)) == 2
    reply = engine.ask(m.Clear())
    assert (reply.chunks, reply.tiers_pending) == (2, 0)
    assert not world.tiers[0].store
    assert not world.owed
    assert engine.save(chain("y", 2)) == 2
    assert {name[0] for name in world.tiers[0].store} == {NAME}


def test_what_a_killed_server_leaves_is_owed_by_the_next() -> None:
    world, engine = begin(auto_tiers=False)
    engine.begin(m.Clear())
    (asked,) = world.live(0, fx.TierList)
    world.answer(asked.job)
    world.pump()
    assert set(world.owed) == {(0, NAME), (0, OTHER)}
    assert all(not keys for _, keys in world.owed.values())


@pytest.mark.parametrize("why", ["down", "fails", "silent", "page"])
def test_a_tier_that_did_not_say_all_is_pending(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, engine = begin(DISK, TierConfig("u", lists=True))
    if why == "down":
        world.down()
    elif why == "fails":
        world.tiers[0].described = None
    elif why == "page":
        monkeypatch.setattr(module, "PAGE_CHUNKS", 2)
        world.tiers[1].described = {}  # it lists less than a page
    else:
        world.auto_tiers = False
    seq = engine.begin(m.Clear())
    for number in list(world.tier_jobs) if why == "silent" else []:
        if world.tier_jobs[number].tier == 1:
            world.answer(number)
    world.auto_tiers = True
    world.pump()
    world.wait(LIST_NS)
    for number in [one for one, job in world.tier_jobs.items() if job.tier == 1]:
        world.answer(number)
    world.wait(5 * SECOND)
    reply = engine.answer(seq)
    assert isinstance(reply, m.ForgottenReply)
    assert reply.tiers_pending == 1
    assert not world.tiers[1].store
    assert bool(world.tiers[0].store) == (why == "down")


def test_tiers_that_cannot_list_or_are_not_written_to_are_not_asked() -> None:
    world, engine = begin(TierConfig("a"), TierConfig("b", Policy.NONE, lists=True))
    assert engine.ask(m.Clear()).tiers_pending == 0
    assert not [effect for effect in world.log if isinstance(effect, fx.TierList)]


def test_an_answer_that_comes_too_late_forgets_nothing() -> None:
    world, engine = begin(auto_tiers=False)
    engine.begin(m.Clear())
    (asked,) = world.live(0, fx.TierList)
    world.wait(LIST_NS)
    world.answer(asked.job)
    world.pump()
    assert not world.owed


def test_an_engine_that_comes_meanwhile_has_its_namespace_cleared_below() -> None:
    world, operator = begin(auto_tiers=False)
    operator.begin(m.Clear())
    (asked,) = world.live(0, fx.TierList)
    engine = world.engine("late")
    engine.register(namespace("other"))
    world.answer(asked.job)
    world.auto_tiers = True
    world.pump()
    for number in list(world.tier_jobs):
        world.answer(number)
    world.wait(SECOND)
    assert not world.tiers[0].store
    assert Fingerprint(OTHER) in world.core._state.roster.owners
