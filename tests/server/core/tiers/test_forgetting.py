"""CLEAR and DELETE reach the tiers, behind writes under way, now or when a tier is back."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers import forgetting as module
from server.core.tiers.policy import Policy
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import SECOND, Engine, chain, namespace

NAME, OTHER = fingerprint(namespace()), fingerprint(namespace("other"))


def begin(world: TierWorld, name: str = "a", model: str = "m") -> Engine:
    engine = world.engine(name)
    engine.register(namespace(model))
    return engine


def drops(world: TierWorld) -> list[fx.TierDrop]:
    return [effect for effect in world.log if isinstance(effect, fx.TierDrop)]


def test_clear_empties_a_tier_of_one_namespace() -> None:
    world = TierWorld(tiered(extents=8))
    world.up()
    a, b = begin(world), begin(world, "b", "other")
    a.save(chain("x", 5))
    b.save(chain("x", 5))
    a.ask(m.Clear(fingerprint=NAME))
    assert {name[0] for name in world.tiers[0].store} == {OTHER}
    a.save(chain("y", 3))
    assert sum(name[0] == NAME for name in world.tiers[0].store) == 3


def test_a_write_in_flight_is_over_before_and_later_ones_wait_for_the_answer() -> None:
    world = TierWorld(tiered(extents=16), auto_tiers=False)
    world.up()
    a = begin(world)
    a.save(chain("x", 3))
    a.ask(m.Clear(fingerprint=NAME))
    a.save(chain("y", 3))
    assert not world.core._state.tiers.readable(NAME)
    (drop,) = drops(world)
    world.answer(drop.job)
    assert not world.tiers[0].store
    assert world.core._state.tiers.readable(NAME)
    world.auto_tiers = True
    world.pump()
    for number in list(world.tier_jobs):
        world.answer(number)
    world.pump()
    assert {name[1] for name in world.tiers[0].store} == set(chain("y", 3))


def test_a_tier_that_was_away_is_told_when_it_is_back() -> None:
    world = TierWorld(tiered())
    world.up()
    a = begin(world)
    a.save(chain("x", 3))
    world.down()
    a.ask(m.Clear(fingerprint=NAME))
    world.pump()
    assert world.core.stats()["tier_t_drops_owed"] == 1
    world.up()
    world.wait(0)
    assert not world.tiers[0].store
    assert world.core.stats()["tier_t_drops_owed"] == 0


def test_a_drop_that_fails_is_tried_again_and_bars_the_namespace_meanwhile() -> None:
    world = TierWorld(tiered())
    world.up()
    a = begin(world)
    a.save(chain("x", 3))
    world.tiers[0].fails = True
    a.ask(m.Delete(fingerprint=NAME, keys=b"".join(chain("x", 2)[1:])))
    world.wait(3 * SECOND)
    assert not world.core._state.tiers.readable(NAME)
    world.tiers[0].fails = False
    world.wait(60 * SECOND)
    assert world.core._state.tiers.readable(NAME)
    assert {name[1] for name in world.tiers[0].store} == set(chain("x", 1))


def test_delete_takes_what_continues_a_chunk_and_what_only_the_tier_has() -> None:
    world = TierWorld(tiered())
    world.up()
    a = begin(world)
    keys = chain("x", 6)
    a.save(keys)
    gone = chain("gone", 1)
    world.tiers[0].store.add((NAME, gone[0], 0))
    a.ask(m.Delete(fingerprint=NAME, keys=keys[2] + gone[0]))
    assert {name[1] for name in world.tiers[0].store} == set(keys[:2])


def test_more_than_can_be_owed_becomes_all_of_the_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_OWED_KEYS", 4)
    world = TierWorld(tiered())
    a = begin(world)
    a.ask(m.Delete(fingerprint=NAME, keys=b"".join(chain("x", 5))))
    world.up()
    (drop,) = drops(world)
    assert drop.keys == b""
    assert world.core.stats()["tier_t_deletes_widened"] == 1


def test_a_tier_that_is_only_read_forgets_nothing() -> None:
    world = TierWorld(tiered(TierConfig("t", Policy.NONE)))
    world.up()
    a = begin(world)
    a.save(chain("x", 3))
    a.ask(m.Clear(fingerprint=NAME))
    a.ask(m.Delete(fingerprint=NAME, keys=b"".join(chain("x", 3))))
    assert not drops(world)
    assert not any(isinstance(effect, fx.TierPut) for effect in world.log)
