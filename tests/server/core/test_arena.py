"""Extents: growth, the budget, two slot sizes in one arena (slots against a model)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from server.core.arena import EVICT_COST, LINE_COST
from server.core.index import ABSENT
from tests.server.core.spaces import SPACES
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
            owner = self.world.core._state.roster.instances[engine.instance].owner
            assert any(owner.extents), "a live owner keeps one extent"


TwoSizes.TestCase.settings = settings(max_examples=25, stateful_step_count=40)
TestTwoSizes = TwoSizes.TestCase


def test_eviction_takes_whole_lines_but_nothing_that_is_read() -> None:
    world = World(config(extents=1, slots=8))
    a = world.engine()
    a.register(namespace())
    a.save(chain("x", 8))
    found = a.lookup(chain("x", 3))
    a.retrieve(chain("x", 3), found.lease, 0, 3)
    world.step(SECOND)
    assert a.save(chain("y", 8)) == 5
    assert world.core.stats()["evicted_chunks"] == 5
    assert world.core.stats()["evicted_incomplete_chunks"] == 0
    assert a.lookup(chain("x", 8), request=2).ready == 3
    world.core.check_integrity()


def test_a_slice_of_eviction_costs_about_the_same_for_short_chains_and_long_ones() -> None:
    world = World(config(extents=1, slots=400), check=False)
    a = world.engine(pages=400)
    a.register(namespace())
    for number in range(400):
        a.save(chain(f"{number}", 1))
    state = world.core._state
    (owner,) = state.roster.owners.values()
    gone = state.arena.evict(owner, 64)
    assert 0 < gone <= EVICT_COST // LINE_COST
    world.core.check_integrity()
    world.check = True
    assert a.save(chain("long", 60)) == 60
    world.step(SECOND)
    world.check = False
    assert a.save(chain("longer", 300)) == 300
    world.core.check_integrity()


def test_who_listens_is_told_what_was_evicted_before_it_is_used_again() -> None:
    world = World(config(extents=1, slots=16))
    a = world.engine()
    a.register(namespace())
    told: list[tuple[list[bytes], int]] = []
    state = world.core._state
    (owner,) = state.roster.owners.values()

    def evicted(of: object, nodes: list[int], slots: list[int]) -> None:
        assert of is owner
        assert not state.slots.state[slots].any()
        told.append(([owner.index.key(node) for node in nodes], len(slots)))

    state.arena.evicted = evicted
    a.save(chain("x", 12))  # a long line goes at once, short ones node by node
    a.save([*chain("y", 2)])
    a.save(chain("z", 2))
    a.save(chain("w", 16))
    keys = [key for some, _ in told for key in some]
    assert len(keys) == len(set(keys)) == sum(count for _, count in told)
    assert set(keys) == {*chain("x", 12), *chain("y", 2), *chain("z", 2)}


def test_ancestors_without_any_part_left_go_once_with_their_last_child() -> None:
    # Of groups that all have windows, what lies far from a chain's end may have gone by itself.
    world = World(config(extents=4, slots=8))
    engine = world.engine()
    space = next(one for one in SPACES if all(group.window_tokens for group in one.groups))
    engine.register(space)
    keys = chain("x", 3)
    for shard in space.shards_of_rank(0):
        engine.save(keys, shard=shard)
    state = world.core._state
    (owner,) = state.roster.owners.values()
    index, arena = owner.index, state.arena
    for key in keys[:2]:
        for cell in range(index.num_shards):
            slot = index.cell(index.find(key), cell)
            if slot != ABSENT:
                index.vacate(index.find(key), cell, was_held=True)
                arena.forget(slot)
    arena.void_forgotten()
    assert arena.evict(owner, 3) == 1
    assert not len(index)
    world.pump()
    for shard in space.shards_of_rank(0):
        engine.save(keys, shard=shard)
    assert len(index) == 3
