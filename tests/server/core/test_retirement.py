"""What nobody uses any more goes as a whole, in its time; what somebody may use stays."""

from __future__ import annotations

from itertools import pairwise

from protocol import messages as m
from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.retirement import LONGEST_LOOK_NS
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import SECOND, Engine, World, chain, config, namespace

HOUR = 3600 * SECOND


def pass_time(world: World, ns: int) -> None:
    """So much of it, with each timer at its time."""
    end_ns = world.now_ns + ns
    for _ in range(10_000):
        due_ns = world.core.next_timer_ns()
        if due_ns is None or due_ns > end_ns:
            break
        world.now_ns = max(world.now_ns, due_ns)
        world.core.tick(world.now_ns)
        world.pump()
    world.now_ns = end_ns


def saved(world: World, model: str, count: int = 3) -> Engine:
    engine = world.engine(model)
    engine.register(namespace(model))
    assert engine.save(chain(model, count)) == count
    return engine


def held(world: World) -> set[str]:
    return {owner.namespace.model_id for owner in world.core._state.roster.owners.values()}


def test_it_goes_after_its_time_without_engines_and_not_before() -> None:
    world = World(config(namespace_ttl_s=3600))
    old = saved(world, "old")
    saved(world, "new")
    pass_time(world, 2 * HOUR)
    assert held(world) == {"old", "new"}
    old.die()
    pass_time(world, HOUR - LONGEST_LOOK_NS - SECOND)
    assert held(world) == {"old", "new"}
    pass_time(world, 2 * LONGEST_LOOK_NS)
    assert held(world) == {"new"}
    stats = world.core.stats()
    assert (stats["retired_namespaces"], stats["retired_chunks"]) == (1, 3)
    assert "cleared_chunks" not in stats
    assert fingerprint(namespace("old")) not in world.namespaces
    back = world.engine("again")
    back.register(namespace("old"))
    assert back.lookup(chain("old", 3)).ready == 0


def test_what_is_pinned_stays_until_the_pin_is_over() -> None:
    world = World(config(namespace_ttl_s=600))
    old = saved(world, "old")
    name = fingerprint(old.space)
    old.ask(m.Pin(fingerprint=name, keys=b"".join(chain("old", 3)), ttl_s=3600))
    old.die()
    pass_time(world, HOUR)
    assert held(world) == {"old"}
    pass_time(world, 660 * SECOND)
    assert held(world) == set()


def test_many_go_one_after_the_other() -> None:
    world = World(config(extents=8, namespace_ttl_s=60))
    for number in range(3):
        saved(world, f"m{number}").die()
    pass_time(world, 67 * SECOND)
    seen = [len(held(world))]
    for _ in range(3):
        pass_time(world, SECOND)
        seen.append(len(held(world)))
    assert seen[-1] == 0
    assert max(one - two for one, two in pairwise(seen)) <= 1


def test_lower_tiers_forget_it_too() -> None:
    world = TierWorld(tiered(TierConfig("t"), namespace_ttl_s=60))
    world.up()
    saved(world, "old").die()
    world.pump()
    assert world.tiers[0].store
    pass_time(world, 80 * SECOND)
    assert not world.tiers[0].store
    assert held(world) == set()


def test_without_a_time_to_live_nothing_is_looked_at() -> None:
    world = World(config())
    saved(world, "old").die()
    pass_time(world, 1000 * HOUR)
    assert held(world) == {"old"}
    assert not any(isinstance(one, fx.DropNamespace) for one in world.log)


def test_one_that_cannot_go_yet_holds_up_no_other() -> None:
    world = World(config(extents=8, namespace_ttl_s=60), check=False)
    saved(world, "old").die()
    owner = next(iter(world.core._state.roster.owners.values()))
    for extent in (one for extents in owner.extents for one in extents):
        extent.sealed = True  # as if a process of a former server still had it
    world.step(SECOND)
    saved(world, "new").die()
    pass_time(world, 100 * SECOND)
    assert held(world) == {"old"}
    assert world.core.stats()["retired_namespaces"] == 2
    pass_time(world, 500 * SECOND)
    assert world.core.stats()["retired_namespaces"] <= 2 + 10
