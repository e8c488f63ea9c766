"""What counts as whole, and what a run ends at."""

from __future__ import annotations

import numpy as np
import pytest

from protocol import messages as m
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers import landing
from server.core.tiers.misses import Miss
from server.core.tiers.parts import Status
from tests.server.core.tiers.reading import READ_ONLY, query, world_of
from tests.server.core.world import PAGE, chain


def test_rows_of_what_came_sound() -> None:
    def rows(*sound: int) -> list[tuple[int, int]]:
        return list(landing._rows(np.array(sound, dtype=np.bool_)))

    assert rows() == []
    assert rows(1, 1, 1) == [(0, 3)]
    assert rows(0, 0) == []
    assert rows(0, 1, 1, 0, 1) == [(1, 2), (4, 1)]


@pytest.mark.parametrize(
    ("statuses", "why"),
    [
        ({Status.ABSENT}, None),
        ({Status.ABSENT, Status.OK}, Miss.INCOMPLETE),
        ({Status.ABSENT, Status.CORRUPT, Status.ERROR}, Miss.CORRUPT),
        ({Status.LOCKED}, Miss.CORRUPT),
        ({Status.ERROR, Status.OK}, Miss.TIER_ERROR),
        ({Status.NO_ROOM}, Miss.TIER_ERROR),
    ],
)
def test_why_a_chunk_is_not_whole(statuses: set[int], why: Miss | None) -> None:
    assert landing._reason(set(map(int, statuses))) is why


def test_a_chunk_counts_when_every_full_shard_of_it_came() -> None:
    world, engine = world_of(space="tp", auto_tiers=False)
    second = world.engine("a", 1)
    second.register(engine.space)
    keys = chain("x", 4)
    world.give(0, engine, keys)
    (fingerprint, *_), *_ = world.names_of(engine, keys[:1])
    world.manners[0].lost = {(fingerprint, keys[2], 1)}
    engine.lookup(keys)
    seq = query(engine)
    world.settle()
    assert engine.answer(seq).ready == 2
    stats = world.core.stats()
    assert (stats["slots_held"], stats["slots_reserved"]) == (4, 0)
    assert stats["miss_chunks_incomplete"] == 2


def test_any_part_of_groups_that_all_have_windows_counts() -> None:
    world, engine = world_of(space="windows only", extents=20)
    second = world.engine("a", 1)
    second.register(engine.space)
    keys = chain("x", 4)
    world.give(0, engine, keys)
    (fingerprint, *_), *_ = world.names_of(engine, keys[:1])
    world.manners[0].lost = {(fingerprint, key, 2) for key in keys[:3]}
    engine.lookup(keys)
    reply = engine.answer(query(engine))
    assert reply.ready == 4
    engine.check_complete(0, engine.retrieve(keys, reply.lease, 0, 4))


def test_pieces_that_came_before_the_one_that_fails_stay() -> None:
    world, engine = world_of(auto_tiers=False, promote_piece_bytes=2 * PAGE)
    keys = chain("x", 8)
    world.give(0, engine, keys)
    engine.lookup(keys)
    seq = query(engine)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    gets = world.flying(0, fx.TierGet)
    world.answer(gets[1].job, Status.ERROR)
    world.answer(gets[0].job)
    world.pump()
    # What is still read keeps its slots, though none of it will be published.
    assert world.core.stats()["slots_held"] == 2
    assert world.core.stats()["slots_reserved"] == 6
    world.answer(gets[3].job)
    world.answer(gets[2].job)
    world.pump()
    assert world.core.stats()["slots_held"] == 2
    # The rest is tried once more, since something came.
    world.settle()
    assert engine.answer(seq).ready == 8


def test_published_slots_know_which_tier_has_them() -> None:
    world, engine = world_of()
    keys = chain("x", 2)
    world.give(0, engine, keys)
    engine.lookup(keys)
    query(engine)
    slots = world.core._state.slots
    assert slots.tiers[slots.generation > 0].tolist() == [1, 1]


@pytest.mark.parametrize("tier", [READ_ONLY, TierConfig("w")])
@pytest.mark.parametrize("is_clear", [True, False])
def test_clear_or_delete_between_two_slices_of_a_piece(tier: TierConfig, is_clear: bool) -> None:
    world, engine = world_of(tier, space="tp", auto_tiers=False, extents=6, slots=100)
    second = world.engine("a", 1)
    second.register(engine.space)
    keys = chain("x", 60)
    world.give(0, engine, keys)
    engine.lookup(keys)
    seq = query(engine)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    (get,) = world.flying(0, fx.TierGet)
    world.answer(get.job)
    while world.core.stats()["slots_held"] < 32:
        assert world.core.work(world.now_ns)
    for effect in world.core.take_effects():
        world.perform(effect)
    (space,) = world.core._state.roster.owners
    engine.send(m.Clear() if is_clear else m.Delete(fingerprint=space, keys=keys[10]))
    world.core.check_integrity()
    world.settle()
    stats = world.core.stats()
    assert stats["slots_reserved"] == 0
    assert stats["chunks"] == (0 if is_clear else 10)
    assert engine.answer(seq).ready == 0
    assert stats["promotions_running"] == 0


def test_a_delete_of_what_only_some_shards_have_ends_all_of_the_run() -> None:
    world, engine = world_of(space="tp", auto_tiers=False)
    second = world.engine("a", 1)
    second.register(engine.space)
    keys = chain("x", 6)
    assert engine.save(keys[:3]) == 3
    world.give(0, engine, keys)
    engine.lookup(keys)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    (space,) = world.core._state.roster.owners
    engine.ask(m.Delete(fingerprint=space, keys=keys[2]))
    world.core.check_integrity()
    world.settle()
    stats = world.core.stats()
    assert (stats["slots_reserved"], stats["promotions_running"]) == (0, 0)
    assert stats["slots_held"] == 2  # what rank 0 has stored before


def test_what_l1_holds_of_a_spoilt_chunk_is_written_again() -> None:
    # Rank 1's part is spoilt below, and goes with all of the chunk; rank 0's is in L1.
    world, engine = world_of(TierConfig("w"), space="tp", extents=6, slots=8)
    second = world.engine("a", 1)
    second.register(engine.space)
    keys = chain("x", 2)
    assert engine.save(keys) == 2
    world.give(0, engine, keys)
    world.manners[0].spoilt = {name for name in world.names_of(engine, keys) if name[2] == 1}
    engine.lookup(keys)
    assert engine.answer(query(engine)).ready == 0
    assert not world.tiers[0].store & world.names_of(engine, keys[:1])
    world.manners[0].spoilt.clear()
    assert second.save(keys) == 2
    world.pump()
    assert world.names_of(engine, keys) <= world.tiers[0].store


def test_what_this_server_has_no_key_for_stays_below_and_is_written_anew() -> None:
    world, engine = world_of(TierConfig("w"), space="tp", extents=6, slots=8)
    second = world.engine("a", 1)
    second.register(engine.space)
    keys = chain("x", 2)
    assert engine.save(keys) == 2
    world.give(0, engine, keys)
    world.manners[0].locked = {name for name in world.names_of(engine, keys) if name[2] == 1}
    engine.lookup(keys)
    assert engine.answer(query(engine)).ready == 0
    assert world.core.stats()["miss_chunks_corrupt"] == 2
    assert world.names_of(engine, keys) <= world.tiers[0].store, "others may have the key"
    assert not any(isinstance(effect, fx.TierDrop) for effect in world.log)
    before = len(world.log)
    assert second.save(keys) == 2
    world.pump()
    puts = [effect for effect in world.log[before:] if isinstance(effect, fx.TierPut)]
    assert {name for put in puts for name in world.names(put)} >= world.manners[0].locked
