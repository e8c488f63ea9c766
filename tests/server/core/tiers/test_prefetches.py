"""QUERY_PREFETCH_STATUS: when it is answered, with what, and what ends the waiting."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.ids import RequestKey
from server.core import effects as fx
from server.core.tiers import prefetches
from server.core.tiers.prefetch import Prefetch
from tests.server.core.tiers.reading import query, world_of
from tests.server.core.world import SECOND, chain, namespace


def test_a_lookup_says_what_may_come_and_the_query_leases_it() -> None:
    world, engine = world_of(auto_tiers=False)
    keys = chain("x", 6)
    world.give(0, engine, keys[:5])
    found = engine.lookup(keys)
    assert (found.ready, found.pending, found.final) == (0, 6, False)
    seq = query(engine)
    assert seq not in engine.replies
    world.settle()
    reply = engine.answer(seq)
    assert (reply.ready, reply.pending, reply.final) == (5, 0, True)
    slots = engine.retrieve(keys, reply.lease, 0, 5)
    engine.check_complete(0, slots)
    stats = world.core.stats()
    assert stats["hit_chunks"] == 5
    assert stats["lookup_chunks"] == 6
    assert stats["tier_t_hit_chunks"] == 5
    assert stats["miss_chunks_cold"] == 1
    assert not stats["prefetches_waiting"]
    assert not stats["promotions_running"]
    # All of it is in L1 now: nobody asks the tier.
    again = engine.lookup(keys[:5], request=2)
    assert (again.ready, again.pending, again.final) == (5, 0, True)


def test_without_tiers_a_lookup_is_final_at_once() -> None:
    world, engine = world_of()
    world.down()
    keys = chain("x", 3)
    found = engine.lookup(keys)
    assert (found.ready, found.pending, found.final) == (0, 0, True)
    reply = engine.ask(m.QueryPrefetchStatus(session=engine.session, request=1, wait_ms=60_000))
    assert reply.final
    assert world.core.stats()["miss_chunks_tier_error"] == 3


def test_the_wait_ends_with_what_is_there_and_the_rest_still_comes() -> None:
    world, engine = world_of(auto_tiers=False)
    keys = chain("x", 4)
    assert engine.save(keys[:1]) == 1
    world.give(0, engine, keys)
    assert engine.lookup(keys).pending == 3
    seq = query(engine, wait_ms=20)
    world.wait(20_000_000)
    reply = engine.answer(seq)
    assert (reply.ready, reply.pending, reply.final) == (1, 3, False)
    assert reply.lease
    world.settle()
    seq = query(engine, wait_ms=20)
    reply = engine.answer(seq)
    assert (reply.ready, reply.pending, reply.final) == (4, 0, True)


def test_the_deadline_covers_queue_and_load_and_late_bytes_serve_the_next_request() -> None:
    # B30: a tier that does not answer.
    world, engine = world_of(auto_tiers=False, promote_deadline_s=0.5)
    keys = chain("x", 4)
    world.give(0, engine, keys)
    assert engine.lookup(keys).pending == 4
    (probe,) = world.tier_jobs
    world.answer(probe)
    world.pump()
    seq = query(engine)
    world.wait(SECOND // 2)
    reply = engine.answer(seq)
    assert (reply.ready, reply.pending, reply.final) == (0, 0, True)
    assert world.core.stats()["miss_chunks_deadline"] == 4
    world.settle()
    found = engine.lookup(keys, request=2)
    assert (found.ready, found.final) == (4, True)


def test_a_further_query_replaces_the_one_that_waits() -> None:
    world, engine = world_of(auto_tiers=False)
    keys = chain("x", 4)
    engine.save(keys[:1])
    world.give(0, engine, keys)
    engine.lookup(keys)
    first = query(engine)
    second = query(engine)
    former = engine.answer(first)
    assert (former.ready, former.pending, former.final) == (1, 3, False)
    assert second not in engine.replies
    world.settle()
    assert engine.answer(second).ready == 4


def test_what_ends_a_request_ends_its_wait() -> None:
    ends: tuple[m.Request, ...] = (
        m.EndSession(session=1, request=1),
        m.Heartbeat(session=1, requests=b""),
        m.Lookup(session=1, request=1, start=0, keys=chain("y", 1)[0]),
    )
    for body in ends:
        world, engine = world_of(auto_tiers=False)
        keys = chain("x", 4)
        engine.save(keys[:1])
        world.give(0, engine, keys)
        engine.lookup(keys)
        seq = query(engine)
        engine.send(body)
        world.pump()
        reply = engine.answer(seq)
        assert (reply.ready, reply.final, reply.lease) == (0, True, b"")
        stats = world.core.stats()
        assert stats["leases"] == 0
        for run in world.core._state.promotion.runs:
            waiting = [one for one in run.passengers if isinstance(one, Prefetch)]
            assert not any(one.is_final for one in waiting)
        # The run goes on, and is the next request's.
        world.settle()
        assert world.core.stats()["miss_chunks_deadline"] == 3
        assert engine.lookup(keys, request=3).ready == 4


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("gives_up", [True, False])
def test_why_is_known_when_the_answer_comes_after_the_wait(there: bool, gives_up: bool) -> None:
    world, engine = world_of(auto_tiers=False, promote_deadline_s=0.5)
    keys = chain("x", 4)
    if there:
        world.give(0, engine, keys)
    assert engine.lookup(keys).pending == 4
    if gives_up:
        engine.send(m.EndSession(session=1, request=1))
        world.pump()
    else:
        seq = query(engine)
        world.wait(SECOND // 2)
        assert engine.answer(seq).final
    assert not any(name.startswith("miss_chunks") for name in world.core.stats())
    world.settle()
    stats = world.core.stats()
    reasons = {name: count for name, count in stats.items() if name.startswith("miss_chunks")}
    assert reasons == {f"miss_chunks_{'deadline' if there else 'cold'}": 4}


def test_a_server_that_ends_answers_who_waits() -> None:
    world, engine = world_of(auto_tiers=False)
    keys = chain("x", 4)
    world.give(0, engine, keys)
    engine.lookup(keys)
    seq = query(engine)
    world.core.begin_drain(world.now_ns)
    world.pump()
    assert engine.answer(seq).final
    assert world.core.drained()


def test_new_extents_count_once_every_reader_has_mapped_them() -> None:
    world, engine = world_of(extents=4, slots=4)
    keys = chain("x", 8)
    world.auto_map = False
    engine.save(keys[:4])
    world.give(0, engine, keys)
    assert engine.lookup(keys).pending == 4
    seq = query(engine)
    assert world.core.stats()["slots_held"] == 8
    assert seq not in engine.replies
    engine.report()
    world.pump()
    assert engine.answer(seq).ready == 8
    slots = engine.retrieve(keys, engine.answer(seq).lease, 0, 8)
    engine.check_complete(0, slots)


def test_what_is_mapped_while_it_is_looked_at_counts() -> None:
    # A match that began before is short of it, and nothing is unmapped any more.
    world, engine = world_of(extents=4, slots=4)
    keys = chain("x", 8)
    world.auto_map = False
    engine.save(keys[:4])
    world.give(0, engine, keys)
    engine.lookup(keys)
    state = world.core._state
    (instance,) = state.roster.instances.values()
    prefetch = state.prefetches.get(instance, RequestKey(1))
    assert prefetch is not None
    body = m.QueryPrefetchStatus(session=engine.session, request=1, wait_ms=60_000)
    seq = engine.send(body)
    assert prefetch.waiter is not None
    assert prefetch.waiter.is_matching, "in slices, of which the first is done"
    engine.report()
    world.pump()
    assert engine.answer(seq).ready == 8


def test_a_reader_that_maps_nothing_holds_the_answer_to_the_deadline_only() -> None:
    world, engine = world_of(extents=4, slots=4, promote_deadline_s=0.25)
    keys = chain("x", 8)
    world.auto_map = False
    engine.save(keys[:4])
    world.give(0, engine, keys)
    engine.lookup(keys)
    seq = query(engine)
    world.wait(SECOND // 4)
    reply = engine.answer(seq)
    assert (reply.ready, reply.final) == (4, True)


def test_a_range_that_begins_later_needs_the_chunk_before_it_in_l1() -> None:
    world, engine = world_of()
    keys = chain("x", 6)
    world.give(0, engine, keys)
    found = engine.lookup(keys, start=3)
    assert (found.ready, found.final) == (0, True)
    engine.save(keys[:4])
    assert engine.lookup(keys, start=3).pending == 2
    assert engine.answer(query(engine)).ready == 3


def test_a_query_of_a_request_without_more_to_come_is_final_at_once() -> None:
    _, engine = world_of(auto_tiers=False)
    keys = chain("x", 2)
    engine.save(keys)
    engine.lookup(keys)
    reply = engine.answer(query(engine))
    assert (reply.ready, reply.final) == (2, True)
    assert not engine.answer(query(engine, request=77)).ready


def test_an_answer_after_the_last_chunks_came_needs_no_wait() -> None:
    world, engine = world_of()
    keys = chain("x", 4)
    world.give(0, engine, keys)
    assert engine.lookup(keys).pending == 4
    reply = engine.answer(query(engine, wait_ms=0))
    assert (reply.ready, reply.final) == (4, True)


def test_a_full_hit_asks_no_tier() -> None:
    world, engine = world_of()
    keys = chain("x", 4)
    engine.save(keys)
    before = len(world.log)
    assert engine.lookup(keys).ready == 4
    assert not [one for one in world.log[before:] if isinstance(one, fx.TierProbe)]


def test_keys_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetches, "MAX_KEY_BYTES", 40 * 16)
    monkeypatch.setattr(prefetches, "MAX_ALL_KEY_BYTES", 70 * 16)
    world, engine = world_of(auto_tiers=False)
    other = world.engine("b")
    other.register(namespace())
    accounted = world.core.accounted_bytes()
    assert engine.lookup(chain("x", 30), request=1).pending == 30
    assert engine.lookup(chain("y", 30), request=2).final
    assert engine.lookup(chain("z", 10), request=3).pending == 10
    assert other.lookup(chain("u", 40), request=1).final
    assert other.lookup(chain("v", 30), request=2).pending == 30
    assert world.core.accounted_bytes() == accounted + 70 * 16
    assert world.core.stats()["miss_chunks_no_room"] == 70
    for one in (engine, other):
        one.die()
    assert world.core._state.prefetches.key_bytes == 0


def test_a_wait_that_ends_with_all_of_it_is_final_whatever_its_run_has_still_to_do() -> None:
    ended = set()
    for slices in range(12):
        world, engine = world_of(auto_tiers=False)
        keys = chain("x", 2)
        world.give(0, engine, keys)
        engine.lookup(keys)
        (probe,) = world.flying(0, fx.TierProbe)
        world.answer(probe.job)
        world.pump()
        (get,) = world.flying(0, fx.TierGet)
        world.answer(get.job)
        for _ in range(slices):
            world.core.work(world.now_ns)
            for effect in world.core.take_effects():
                world.perform(effect)
        reply = engine.answer(query(engine, wait_ms=0))
        assert reply.final == (not reply.pending), slices
        assert reply.ready + reply.pending == 2
        ended.add(reply.ready)
        world.pump()
        assert not world.core.stats()["prefetches_waiting"] or not reply.final
    assert ended == {0, 2}
