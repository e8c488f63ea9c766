"""Pieces: how large, how many, and what each says of its parts."""

from __future__ import annotations

import pytest

from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers import reads
from server.core.tiers.policy import Policy
from tests.server.core.tiers.model import TierWorld
from tests.server.core.tiers.reading import query, world_of
from tests.server.core.world import PAGE, chain


def test_a_bounded_number_of_pieces_is_read_at_once_each_of_whole_chunks() -> None:
    world, engine = world_of(auto_tiers=False, extents=4, slots=40, promote_piece_bytes=2 * PAGE)
    keys = chain("x", 40)
    world.give(0, engine, keys)
    engine.lookup(keys)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    gets = world.flying(0, fx.TierGet)
    assert [len(get.parts) for get in gets] == [2] * reads.PIECES
    assert world.core.stats()["slots_reserved"] == 2 * reads.PIECES
    # Only the first one frees a place: what came behind it waits for it.
    world.answer(gets[1].job)
    world.pump()
    assert world.core.stats()["slots_held"] == 0
    world.answer(gets[0].job)
    world.pump()
    assert world.core.stats()["slots_held"] == 4
    assert len(world.flying(0, fx.TierGet)) == reads.PIECES
    seq = query(engine)
    world.settle()
    assert engine.answer(seq).ready == 40


def test_no_more_is_reserved_than_the_tier_takes() -> None:
    tier = TierConfig("t", policy=Policy.NONE, window_bytes=4 * PAGE)
    world, engine = world_of(
        tier, auto_tiers=False, extents=4, slots=40, promote_piece_bytes=2 * PAGE
    )
    keys = chain("x", 40)
    world.give(0, engine, keys)
    engine.lookup(keys)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    assert len(world.flying(0, fx.TierGet)) == 2
    assert world.core.stats()["slots_reserved"] == 4


def test_short_runs_are_cut_into_several_pieces() -> None:
    for page, sizes in ((PAGE, [16]), (1 << 20, [2] * reads.PIECES)):
        world, engine = world_of(auto_tiers=False, page_bytes=page, extents=2, slots=32)
        keys = chain("x", 16)
        world.give(0, engine, keys)
        engine.lookup(keys)
        (probe,) = world.flying(0, fx.TierProbe)
        world.answer(probe.job)
        world.pump()
        assert [len(get.parts) for get in world.flying(0, fx.TierGet)] == sizes


def test_a_chunk_of_more_parts_than_one_read_takes_is_read_by_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "MAX_PARTS", 2)
    world, engine = world_of(space="many groups", auto_tiers=False, extents=20)
    second = world.engine("a", 1)
    second.register(engine.space)
    keys = chain("x", 3)
    world.give(0, engine, keys)
    assert engine.lookup(keys).pending == 3
    (probe,) = world.flying(0, fx.TierProbe)
    assert (probe.first, probe.shards) == (2, 3)
    world.answer(probe.job)
    world.pump()
    sizes = [len(get.parts) for get in world.flying(0, fx.TierGet)]
    assert sizes == [2] * 7 + [1]
    seq = query(engine)
    for get in reversed(world.flying(0, fx.TierGet)):
        assert world.core.stats()["slots_held"] == 0
        world.answer(get.job)
        world.pump()
    assert engine.answer(seq).ready == 3
    assert world.core.stats()["slots_held"] == 15


def test_shards_that_are_held_are_not_read_again() -> None:
    world, engine = world_of(space="tp", auto_tiers=False)
    second = world.engine("a", 1)
    second.register(engine.space)
    keys = chain("x", 3)
    engine.save(keys)
    world.give(0, engine, keys)
    assert engine.lookup(keys).pending == 3
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    (get,) = world.flying(0, fx.TierGet)
    assert get.parts["shard"].tolist() == [1, 1, 1]
    seq = query(engine)
    world.settle()
    assert engine.answer(seq).ready == 3


def test_what_an_engine_is_storing_is_left_to_it() -> None:
    world, engine = world_of(auto_tiers=False)
    keys = chain("x", 3)
    world.auto_copies = False
    seq = engine.send(engine.store_body(keys))
    world.pump()
    world.give(0, engine, keys)
    assert engine.lookup(keys).pending == 3
    waiting = query(engine)
    world.settle()
    assert engine.answer(waiting).ready == 0
    assert not world.tier_reads
    world.finish(next(iter(world.jobs)))
    world.pump()
    assert engine.answer(seq).copied == 3


@pytest.mark.parametrize("slices", range(8))
def test_a_stuck_porter_that_ends_while_its_run_lets_go_frees_the_run(
    slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the answer comes, nobody sleeps through it: the slots are given back."""
    monkeypatch.setattr(reads, "FREE_BLOCKS", 1)
    world, engine = world_of(auto_tiers=False)
    keys = chain("x", 5)
    world.give(0, engine, keys)
    engine.lookup(keys)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    assert world.core.stats()["slots_reserved"] == 5
    TierWorld.down(world, 0, stuck_life=1)
    for _ in range(slices):
        world.core.work(world.now_ns)
    world.gone(0, 1)
    assert world.core.stats()["slots_reserved"] == 0
    assert world.core.stats()["promotions_running"] == 0
