"""Runs: who shares one, from which tier, what ends them, and what they leave behind."""

from __future__ import annotations

import pytest

from protocol import messages as m
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers.parts import MAX_KEYS, Status
from server.core.tiers.policy import Policy
from server.core.tiers.promotion import MAX_RUNS
from tests.server.core.tiers.reading import query, world_of
from tests.server.core.world import PAGE, SECOND, chain, namespace

TWO = (TierConfig("a", policy=Policy.NONE), TierConfig("b", policy=Policy.NONE))
PIECE = 2 * PAGE


def test_the_first_tier_that_has_some_is_read_and_then_the_next() -> None:
    world, engine = world_of(*TWO)
    keys = chain("x", 6)
    world.give(0, engine, keys[:2])
    world.give(1, engine, keys)
    assert engine.lookup(keys).pending == 6
    assert engine.answer(query(engine)).ready == 6
    assert [job.tier for job in world.tier_reads] == [0, 1]
    stats = world.core.stats()
    assert (stats["tier_a_hit_chunks"], stats["tier_b_hit_chunks"]) == (2, 4)


def test_a_tier_that_only_claims_is_followed_by_the_next_in_the_same_run() -> None:
    world, engine = world_of(*TWO)
    keys = chain("x", 4)
    world.give(0, engine, keys)
    world.give(1, engine, keys)
    world.manners[0].lost = world.names_of(engine, keys)
    assert engine.lookup(keys).pending == 4
    assert engine.answer(query(engine)).ready == 4


def test_only_what_is_contiguous_from_l1s_frontier_comes() -> None:
    # P15: the tier lost a chunk in the middle, whatever it claims.
    world, engine = world_of(auto_tiers=False, promote_piece_bytes=PIECE)
    keys = chain("x", 8)
    world.give(0, engine, keys)
    world.manners[0].lost = world.names_of(engine, keys[3:4])
    assert engine.lookup(keys).pending == 8
    seq = query(engine)
    world.settle()
    assert engine.answer(seq).ready == 3
    stats = world.core.stats()
    assert stats["slots_reserved"] == 0
    assert stats["slots_held"] == 3


def test_the_parents_key_goes_with_each_value() -> None:
    world, engine = world_of()
    keys = chain("x", 4)
    engine.save(keys[:1])
    world.give(0, engine, keys)
    engine.lookup(keys)
    (get,) = world.tier_reads
    assert [bytes(one) for one in get.parts["key"]] == keys[1:]
    assert [bytes(one) for one in get.parts["parent"]] == keys[:3]


def test_one_load_serves_all_who_wait_for_the_same_chunk() -> None:
    world, engine = world_of(auto_tiers=False)
    trunk = chain("x", 4)
    other = trunk[:3] + chain("y", 5)[3:]
    world.give(0, engine, [*trunk, *other])
    others = [world.engine(name) for name in "bc"]
    for one in others:
        one.register(namespace())
    asked = [(engine, trunk), (others[0], trunk), (others[1], other)]
    for one, keys in asked:
        assert one.lookup(keys).pending == len(keys)
    seqs = [query(one) for one, _ in asked]
    assert world.core.stats()["promotions_running"] == 1
    world.settle()
    for (one, keys), seq in zip(asked, seqs, strict=True):
        assert one.answer(seq).ready == len(keys)
    keys = [bytes(key) for job in world.tier_reads for key in job.parts["key"]]
    assert len(keys) == len(set(keys)) == 6


def test_spoilt_values_are_dropped_from_a_tier_that_may_be_written_to() -> None:
    world, engine = world_of(TierConfig("w"), auto_tiers=False)
    keys = chain("x", 4)
    world.give(0, engine, keys)
    world.manners[0].spoilt = world.names_of(engine, keys[2:3])
    engine.lookup(keys)
    seq = query(engine)
    world.settle()
    assert engine.answer(seq).ready == 2
    assert world.names_of(engine, keys[2:3]).isdisjoint(world.tiers[0].store)
    assert world.names_of(engine, keys[:2]) <= world.tiers[0].store
    assert world.core.stats()["miss_chunks_corrupt"] == 2
    # It is stored anew, and written anew.
    world.manners[0].spoilt = set()
    assert engine.save(keys, 2) == 4
    world.settle()
    assert world.names_of(engine, keys) <= world.tiers[0].store


def test_what_is_spoilt_cannot_be_stored_before_it_is_dropped() -> None:
    world, engine = world_of(TierConfig("w"), auto_tiers=False)
    keys = chain("x", 2)
    world.give(0, engine, keys)
    world.manners[0].spoilt = world.names_of(engine, keys)
    engine.lookup(keys)
    for kind in (fx.TierProbe, fx.TierGet):
        (job,) = world.flying(0, kind)
        world.answer(job.job)
        world.pump()
    (drop,) = world.flying(0, fx.TierDrop)
    assert engine.store(keys).stop is m.StopReason.BUSY
    world.answer(drop.job)
    world.pump()
    assert engine.save(keys) == 2


def test_parts_of_windows_that_a_tier_has_not_end_nothing() -> None:
    world, engine = world_of(space="window")
    keys = chain("x", 8)
    world.give(0, engine, keys)
    (fingerprint, *_), *_ = world.names_of(engine, keys[:1])
    world.tiers[0].store -= {(fingerprint, key, 1) for key in keys[:5]}
    engine.lookup(keys)
    reply = engine.answer(query(engine))
    assert reply.ready == 8  # a window of three blocks reaches no further up
    engine.check_complete(0, engine.retrieve(keys, reply.lease, 0, 8))
    assert world.core.stats()["slots_reserved"] == 0


def test_no_room_is_an_answer_and_passes() -> None:
    # B27: all of L1 is pinned.
    world, engine = world_of(extents=1, slots=4)
    mine = chain("m", 4)
    assert engine.save(mine) == 4
    held = engine.lookup(mine, request=9)
    engine.retrieve(mine, held.lease, 0, 4)
    keys = chain("x", 3)
    world.give(0, engine, keys)
    engine.lookup(keys)
    reply = engine.answer(query(engine))
    assert (reply.ready, reply.final) == (0, True)
    assert world.core.stats()["miss_chunks_no_room"] == 3
    engine.release(held.lease)
    assert engine.lookup(keys, request=2).pending == 3
    assert engine.answer(query(engine, request=2)).ready == 3


def test_a_chain_longer_than_l1_keeps_its_own_beginning() -> None:
    world, engine = world_of(extents=1, slots=4, auto_tiers=False, promote_piece_bytes=PIECE)
    keys = chain("x", 9)
    world.give(0, engine, keys)
    engine.lookup(keys)
    seq = query(engine)
    world.settle()
    reply = engine.answer(seq)
    assert (reply.ready, reply.final) == (4, True)


def test_what_it_published_is_not_evicted_for_what_follows() -> None:
    narrow = TierConfig("t", policy=Policy.NONE, window_bytes=PIECE)
    world, engine = world_of(
        narrow, extents=1, slots=4, auto_tiers=False, promote_piece_bytes=PIECE
    )
    keys = chain("x", 9)
    world.give(0, engine, keys)
    engine.lookup(keys)
    seq = query(engine)
    world.settle()
    assert [len(get.parts) for get in world.tier_reads] == [2, 2]
    assert (engine.answer(seq).ready, world.core.stats()["evicted_chunks"]) == (4, 0)


def test_what_is_just_published_is_not_evicted_before_it_is_continued() -> None:
    # A STORE has its slice between those in which a piece is published and the next one begun.
    narrow = TierConfig("t", policy=Policy.NONE, window_bytes=PIECE)
    world, engine = world_of(
        narrow, extents=1, slots=4, auto_tiers=False, promote_piece_bytes=PIECE
    )
    mine = chain("m", 2)
    assert engine.save(mine) == 2
    engine.retrieve(mine, engine.lookup(mine, request=9).lease, 0, 2)
    keys = chain("x", 4)
    world.give(0, engine, keys)
    engine.lookup(keys)
    seq = query(engine)
    other = world.engine("b")
    other.register(namespace())
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    (get,) = world.flying(0, fx.TierGet)
    other.send(other.store_body(chain("y", 1)))
    world.answer(get.job)
    for number in range(8):
        world.core.work(world.now_ns)
        world.core.check_integrity()
        for effect in world.core.take_effects():
            world.perform(effect)
        other.send(other.store_body(chain(f"y{number}", 1)))
    world.settle()
    assert engine.answer(seq).ready == 2
    assert world.core.stats()["evicted_chunks"] == 0


def test_a_tier_that_hangs_at_the_question_is_left_for_the_next() -> None:
    # B30
    world, engine = world_of(*TWO, auto_tiers=False, promote_deadline_s=30.0)
    keys = chain("x", 4)
    world.give(1, engine, keys)
    engine.lookup(keys)
    seq = query(engine)
    world.wait(2 * SECOND)
    for job in world.flying(1, fx.TierProbe):
        world.answer(job.job)
    world.pump()
    for job in world.flying(1, fx.TierGet):
        world.answer(job.job)
    world.pump()
    assert engine.answer(seq).ready == 4


def test_a_read_that_hangs_holds_its_slots_and_nobody_else() -> None:
    # B30: the QUERY is final in its deadline; slots are free when the porter is gone for certain.
    world, engine = world_of(auto_tiers=False, promote_deadline_s=1.0)
    keys = chain("x", 4)
    world.give(0, engine, keys)
    engine.lookup(keys)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    seq = query(engine)
    world.wait(SECOND)
    assert engine.answer(seq).final
    world.wait(2 * SECOND)
    again = engine.lookup(keys, request=2)
    assert (again.pending, again.final) == (0, True)
    world.down(0, stuck_life=1)
    assert world.core.stats()["slots_reserved"] == 4
    world.up(0)
    world.gone(0, 1)
    assert world.core.stats()["slots_reserved"] == 0
    world.wait(SECOND)
    world.settle()
    assert engine.lookup(keys, request=3).pending == 4
    seq = query(engine, request=3)
    world.settle()
    assert engine.answer(seq).ready == 4


def test_a_read_that_still_hangs_when_its_tier_is_well_again_is_waited_for_by_nobody() -> None:
    # B30
    world, engine = world_of(auto_tiers=False)
    keys = chain("x", 4)
    world.give(0, engine, keys)
    engine.lookup(keys)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.wait(4 * SECOND)
    (health,) = world.flying(0, fx.TierHealth)
    world.answer(health.job)
    world.pump()
    assert world.core.stats()["tier_t_up"] == 1
    again = engine.lookup(keys, request=2)
    assert (again.pending, again.final) == (0, True)
    assert world.core.stats()["miss_chunks_tier_error"] == 4
    world.settle()
    assert engine.lookup(keys, request=3).ready == 4, "the late bytes serve the next request"


@pytest.mark.parametrize("space", ["", "tp"])
def test_what_a_stuck_porter_reads_may_be_stored_and_read_anew(space: str) -> None:
    # B30: only its slots are left alone until its end, which may never come.
    world, engine = world_of(auto_tiers=False, space=space, extents=6, slots=40)
    others = [world.engine("a", rank) for rank in range(1, engine.space.num_ranks)]
    for other in others:
        other.register(engine.space)
    keys = chain("x", 20)
    assert [one.save(keys[:1]) for one in [engine, *others]] == [1] * (1 + len(others))
    world.give(0, engine, keys)
    engine.lookup(keys)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    stuck = world.core.stats()["slots_reserved"]
    world.down(0, stuck_life=1)
    assert [one.save(keys[:6]) for one in [engine, *others]] == [6] * (1 + len(others))
    world.up(0)
    world.wait(SECOND)
    world.settle()
    assert engine.lookup(keys, request=2).pending == 14
    seq = query(engine, request=2)
    world.settle()
    assert engine.answer(seq).ready == 20
    assert world.core.stats()["slots_reserved"] == stuck
    world.gone(0, 1)
    stats = world.core.stats()
    assert (stats["slots_reserved"], stats["promotions_running"]) == (0, 0)


def test_nothing_is_published_after_a_clear_or_a_delete() -> None:
    for body in (m.Clear(), None):
        world, engine = world_of(TierConfig("w"), auto_tiers=False)
        keys = chain("x", 4)
        assert engine.save(keys[:1]) == 1
        world.settle()
        world.give(0, engine, keys)
        engine.lookup(keys)
        seq = query(engine)
        (probe,) = world.flying(0, fx.TierProbe)
        world.answer(probe.job)
        world.pump()
        (fingerprint,) = world.core._state.roster.owners
        engine.begin(body or m.Delete(fingerprint=fingerprint, keys=keys[0]))
        (get,) = world.flying(0, fx.TierGet)
        world.answer(get.job)
        world.settle()
        assert engine.answer(seq).ready == 0
        assert world.core.stats()["chunks"] == 0
        assert world.core.stats()["slots_reserved"] == 0
        assert not world.tiers[0].store


def test_an_engines_death_ends_its_wait_and_not_the_run() -> None:
    world, engine = world_of(auto_tiers=False)
    other = world.engine("b")
    other.register(namespace())
    keys = chain("x", 4)
    world.give(0, engine, keys)
    engine.lookup(keys)
    query(engine)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    engine.die()
    assert world.core.stats()["prefetches_waiting"] == 0
    world.settle()
    assert other.lookup(keys).ready == 4


def test_the_last_engines_death_leaves_nothing_reserved() -> None:
    world, engine = world_of(auto_tiers=False)
    keys = chain("x", 4)
    world.give(0, engine, keys)
    engine.lookup(keys)
    engine.die()
    world.settle()
    stats = world.core.stats()
    assert (stats["slots_reserved"], stats["promotions_running"]) == (0, 0)
    assert (stats["namespaces"], stats["arena_used_bytes"]) == (0, 0)


def test_without_engines_no_more_is_read() -> None:
    narrow = TierConfig("t", policy=Policy.NONE, window_bytes=PIECE)
    world, engine = world_of(narrow, auto_tiers=False, promote_piece_bytes=PIECE)
    keys = chain("x", 8)
    world.give(0, engine, keys)
    engine.lookup(keys)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    engine.die()
    world.settle()
    assert len(world.tier_reads) == 1
    assert world.core.stats()["slots_held"] == 2


def test_long_chains_come_in_several_runs() -> None:
    count = MAX_KEYS + 10
    world, engine = world_of(extents=10, slots=count, check=False)
    keys = chain("x", count)
    world.give(0, engine, keys)
    assert engine.lookup(keys).pending == count
    assert engine.answer(query(engine)).ready == count
    probes = [one for one in world.log if isinstance(one, fx.TierProbe)]
    assert [len(one.keys) // 16 for one in probes] == [MAX_KEYS, 10]
    world.core.check_integrity()


def test_runs_are_bounded() -> None:
    world, engine = world_of(auto_tiers=False)
    for number in range(MAX_RUNS):
        keys = chain(f"x{number}", 1)
        assert engine.lookup(keys, request=number).pending == 1
    assert engine.lookup(chain("y", 1), request=MAX_RUNS).final
    assert world.core.stats()["promotions_running"] == MAX_RUNS
    assert world.core.stats()["miss_chunks_no_room"] == 1


def test_runs_that_a_stuck_porter_keeps_leave_room_for_others() -> None:
    world, engine = world_of(auto_tiers=False, extents=8, slots=40)
    chains = [chain(f"x{number}", 1) for number in range(MAX_RUNS)]
    for number, keys in enumerate(chains):
        world.give(0, engine, keys)
        engine.lookup(keys, request=number)
    for probe in world.flying(0, fx.TierProbe):
        world.answer(probe.job)
    world.pump()
    assert world.core.stats()["slots_reserved"] == MAX_RUNS
    world.down(0, stuck_life=1)
    world.up(0)
    world.wait(SECOND)
    world.settle()
    assert engine.lookup(chains[0], request=99).pending == 1
    seq = query(engine, request=99)
    world.settle()
    assert engine.answer(seq).ready == 1
    assert world.core.stats()["promotions_running"] == MAX_RUNS
    world.gone(0, 1)
    assert world.core.stats()["promotions_running"] == 0


def test_a_tier_that_could_not_be_asked_is_why_and_not_that_nobody_has_it() -> None:
    world, engine = world_of(*TWO)
    keys = chain("x", 3)
    world.tiers[0].fails = True
    assert engine.lookup(keys).pending == 3
    assert engine.answer(query(engine)).ready == 0
    stats = world.core.stats()
    assert stats["tier_a_up"] == 1, "its breaker stays closed"
    assert stats["miss_chunks_tier_error"] == 3
    assert "miss_chunks_cold" not in stats
    world.give(1, engine, keys[:2])
    engine.lookup(keys, request=2)
    assert engine.answer(query(engine, request=2)).ready == 2


def test_an_error_of_all_is_no_answer_of_the_tier() -> None:
    world, engine = world_of(auto_tiers=False)
    keys = chain("x", 2)
    world.give(0, engine, keys)
    engine.lookup(keys)
    seq = query(engine)
    (probe,) = world.flying(0, fx.TierProbe)
    world.answer(probe.job)
    world.pump()
    (get,) = world.flying(0, fx.TierGet)
    world.answer(get.job, Status.ERROR)
    world.settle()
    assert engine.answer(seq).ready == 0
    assert world.core.stats()["miss_chunks_tier_error"] == 2
