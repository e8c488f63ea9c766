"""QUERY_PREFETCH_STATUS: when it is answered, with what, and what ends the waiting."""

from __future__ import annotations

from typing import Any

from protocol import messages as m
from server.core.config import TierConfig
from server.core.tiers.policy import Policy
from tests.server.core.tiers.model import tiered
from tests.server.core.tiers.reading import ReadWorld, query
from tests.server.core.world import SECOND, Engine, chain, namespace

READ_ONLY = TierConfig("t", policy=Policy.NONE)


def world_of(*tiers: TierConfig, **fields: Any) -> tuple[ReadWorld, Engine]:
    auto = fields.pop("auto_tiers", True)
    world = ReadWorld(tiered(*(tiers or (READ_ONLY,)), **fields), auto_tiers=auto)
    for number in range(len(world.tiers)):
        world.up(number)
    engine = world.engine()
    engine.register(namespace())
    return world, engine


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
