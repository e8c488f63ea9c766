"""Extents: growth, the budget, two slot sizes in one arena (slots against a model)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from server.core import effects as fx
from server.core.config import CoreConfig
from tests.server.core.world import PAGE, SECOND, Engine, World, chain, config, namespace


class TwoSizes(RuleBasedStateMachine):
    """Two models of unequal page size save and load in one arena (P17, B25)."""

    @initialize()
    def begin(self) -> None:
        self.world = World(config(extents=5, slots=6), check=False)
        self.engines: list[Engine] = []
        for name, page_bytes in (("small", PAGE), ("large", 3 * PAGE)):
            engine = self.world.engine(name)
            engine.register(namespace(name, page_bytes=page_bytes))
            self.engines.append(engine)

    @rule(which=st.integers(0, 1), name=st.sampled_from("abcde"), length=st.integers(1, 12))
    def save(self, which: int, name: str, length: int) -> None:
        self.world.step(SECOND)
        self.engines[which].save(chain(name, length))

    @rule(which=st.integers(0, 1), name=st.sampled_from("abcde"))
    def load(self, which: int, name: str) -> None:
        engine, keys = self.engines[which], chain(name, 12)
        found = engine.lookup(keys)
        if found.ready and len(engine.claims) < 2:
            engine.retrieve(keys, found.lease, 0, found.ready)
        engine.end()

    @rule(which=st.integers(0, 1))
    def release(self, which: int) -> None:
        engine = self.engines[which]
        if engine.claims:
            engine.release(next(iter(engine.claims)))

    @invariant()
    def all_is_well(self) -> None:
        self.world.core.check_integrity()
        self.world.check_claims()
        for engine in self.engines:
            owner = self.world.core._state.registry.instances[engine.instance].owner
            assert any(owner.extents), "a live owner keeps one extent"


TwoSizes.TestCase.settings = settings(max_examples=25, stateful_step_count=40)
TestTwoSizes = TwoSizes.TestCase


def test_the_next_extent_is_made_before_the_last_is_full() -> None:
    world = World(config(extents=4, slots=8), auto_extents=True)
    a = world.engine()
    a.register(namespace())
    a.save(chain("x", 7))
    assert world.core.stats()["extents"] == 2


def test_a_store_waits_for_its_extent_and_others_go_on() -> None:
    world = World(config(extents=4, slots=4))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace("other"))
    world.auto_extents = False
    waiting = a.send(a.store_body(chain("x", 8)))
    world.pump()
    assert waiting not in a.replies
    assert b.save(chain("y", 3)) == 3
    creates = [effect for effect in world.pending if isinstance(effect, fx.CreateExtent)]
    assert creates
    world.auto_extents = True
    for effect in creates:
        world.create(effect)
    world.pump()
    assert a.answer(waiting).copied == 8


def test_the_budget_is_never_exceeded_and_small_rests_are_used() -> None:
    plain = config(extents=2, slots=8)
    rest = plain.extent_bytes * 2 // 3
    world = World(CoreConfig(arena_bytes=plain.arena_bytes + rest, extent_bytes=plain.extent_bytes))
    a = world.engine()
    a.register(namespace())
    for number in range(6):
        a.save(chain(f"n{number}", 8))
    stats = world.core.stats()
    assert stats["arena_used_bytes"] <= stats["arena_bytes"]
    assert stats["extents"] == 3
    assert stats["slots_held"] > 16


def test_a_reader_that_unmaps_by_itself_is_not_offered_what_it_lacks() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    keys = chain("x", 4)
    a.save(keys)
    assert a.lookup(keys).ready == 4
    a.to_unmap = [1]
    a.report()
    world.pump()
    assert a.lookup(keys).ready == 0
    a.to_map = [1]
    a.report()
    world.pump()
    assert a.lookup(keys).ready == 4
