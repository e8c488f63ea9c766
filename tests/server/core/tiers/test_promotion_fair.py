"""Engines that share a tier: one with a great deal to promote does not hold up the others."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from server.core import effects as fx
from server.core.tiers import reads
from server.core.tiers.promotion import MAX_RUNS
from tests.server.core.engine import Engine
from tests.server.core.tiers.reading import READ_ONLY, ReadWorld, query, world_of
from tests.server.core.world import PAGE, chain

WINDOW = 16
"""Chunks on their way."""


@dataclass
class Porter:
    """Answers as one does that reads one after the other: what came first is done first."""

    world: ReadWorld
    chunks: int = 0
    order: list[bytes] = field(default_factory=list)

    def turn(self) -> None:
        """Questions at once, and one read."""
        world = self.world
        for probe in world.flying(0, fx.TierProbe):
            world.answer(probe.job)
            world.pump()
        gets = world.flying(0, fx.TierGet)
        if gets:
            first = min(gets, key=lambda get: get.job)
            self.chunks += len(first.parts)
            self.order += [bytes(row["key"]) for row in first.parts]
            world.answer(first.job)
            world.pump()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> tuple[ReadWorld, Engine, Engine]:
    monkeypatch.setattr(reads, "LEAST_PIECE_BYTES", PAGE)
    tier = type(READ_ONLY)("t", policy=READ_ONLY.policy, window_bytes=WINDOW * PAGE)
    world, engine = world_of(
        tier, auto_tiers=False, extents=16, slots=64, promote_piece_bytes=2 * PAGE
    )
    other = world.engine("b")
    other.register(engine.space)
    return world, engine, other


def ready(engine: Engine, seq: int) -> int | None:
    return engine.answer(seq).ready if seq in engine.replies else None


@pytest.mark.parametrize("size", [1, 8, 24])
def test_a_few_chunks_wait_for_a_window_of_anothers_and_not_for_all(
    bench: tuple[ReadWorld, Engine, Engine], size: int
) -> None:
    world, much, little = bench
    great, small = chain("great", 160), chain("small", size)
    world.give(0, much, great)
    world.give(0, little, small)
    much.lookup(great)
    porter = Porter(world)
    for _ in range(10):
        porter.turn()
    waiting = query(much)
    before = porter.chunks
    little.lookup(small)
    seq = query(little)
    while ready(little, seq) is None:
        porter.turn()
        assert porter.chunks < 160
    assert ready(little, seq) == size
    assert porter.chunks - before <= WINDOW + 2 * size + 2
    while ready(much, waiting) is None:
        porter.turn()
    assert ready(much, waiting) == 160
    assert [key for key in porter.order if key in set(great)] == great, "in the order of the chain"


def test_both_that_want_much_get_on_alike(bench: tuple[ReadWorld, Engine, Engine]) -> None:
    world, one, other = bench
    chains = [chain("one", 120), chain("other", 120)]
    porter = Porter(world)
    for engine, keys in zip((one, other), chains, strict=True):
        world.give(0, engine, keys)
        engine.lookup(keys)
        for _ in range(5):
            porter.turn()
    done = len(porter.order)
    for _ in range(40):
        porter.turn()
    shares = [sum(key in set(keys) for key in porter.order[done:]) for keys in chains]
    assert abs(shares[0] - shares[1]) <= WINDOW


def test_one_engine_does_not_take_all_places(bench: tuple[ReadWorld, Engine, Engine]) -> None:
    world, much, little = bench
    for number in range(MAX_RUNS + 1):
        keys = chain(f"x{number}", 1)
        world.give(0, much, keys)
        found = much.lookup(keys, request=number)
        assert found.pending == (number < MAX_RUNS)
    keys = chain("y", 2)
    world.give(0, little, keys)
    assert little.lookup(keys).pending == 2
    assert little.lookup(chain("z", 2), request=2).pending == 0, "it has one"
    seq = query(little)
    porter = Porter(world)
    for _ in range(4 * MAX_RUNS):
        porter.turn()
    assert ready(little, seq) == 2
