"""Tokens requested, hit and loaded: each chunk once for its LOOKUP, and never more than before."""

from __future__ import annotations

import pytest

from protocol import messages as m
from server.core.tallies import Tally, came_from
from tests.server.core.tiers.reading import query, world_of
from tests.server.core.world import World, chain, config, namespace


def test_a_chunk_is_loaded_once() -> None:
    tally = Tally()
    assert tally.load(2, 3) == 3
    assert tally.load(2, 3) == 0
    assert tally.load(0, 6) == 3
    assert tally.load(5_000, 1) == 1


@pytest.mark.parametrize(
    ("rides", "first", "stop", "expected"),
    [
        ([], 0, 4, {"l1": 4}),
        ([], 4, 4, {}),
        ([(2, 5, "disk")], 2, 5, {"disk": 3}),
        ([(2, 5, "disk")], 3, 6, {"disk": 2, "l1": 1}),
        # The first run had more than the prompt shares with it: the second begins before its end.
        ([(0, 9, "disk"), (4, 7, "far")], 0, 7, {"disk": 4, "far": 3}),
        ([(0, 2, "disk"), (2, 2, "far"), (2, 3, "disk")], 0, 3, {"disk": 3}),
    ],
)
def test_where_chunks_came_from(
    rides: list[tuple[int, int, str]], first: int, stop: int, expected: dict[str, int]
) -> None:
    assert dict(came_from(rides, first, stop)) == expected


def test_repeated_and_replaced_answers_count_once() -> None:
    world = World(config())
    engine = world.engine()
    engine.register(namespace())
    tokens = namespace().chunk_tokens
    keys = chain("x", 10)
    engine.save(keys[:6])
    lease = engine.lookup(keys).lease
    for _ in range(2):  # a RETRIEVE whose answer was lost is asked again
        engine.retrieve(keys, lease, 0, 4)
    stats = engine.ask(m.Stats()).values
    assert stats["requested_tokens"] == 10 * tokens
    assert stats["hit_tokens_l1"] == 6 * tokens
    assert stats["loaded_tokens"] == 4 * tokens
    assert stats["retrieved_chunks"] == 8
    engine.retrieve(keys, lease, 3, 3)
    assert engine.ask(m.Stats()).values["loaded_tokens"] == 6 * tokens


def test_chunks_count_for_the_tier_that_brought_them() -> None:
    world, engine = world_of(auto_tiers=False)
    tokens = namespace().chunk_tokens
    keys = chain("x", 6)
    assert engine.save(keys[:2]) == 2
    world.give(0, engine, keys[:5])
    first = engine.lookup(keys)
    assert (first.ready, first.pending) == (2, 4)
    engine.retrieve(keys, first.lease, 0, 2)
    seq = query(engine)
    world.settle()
    reply = engine.answer(seq)
    assert reply.ready == 5
    engine.retrieve(keys, reply.lease, 0, 5)
    stats = world.core.stats()
    assert stats["requested_tokens"] == 6 * tokens
    assert (stats["hit_tokens_l1"], stats["hit_tokens_t"]) == (2 * tokens, 3 * tokens)
    # The first two were loaded under the first lease, and are not loaded once more.
    assert stats["loaded_tokens"] == 5 * tokens
    # Next time all of it is L1's.
    engine.lookup(keys[:5], request=2)
    stats = world.core.stats()
    assert (stats["hit_tokens_l1"], stats["hit_tokens_t"]) == (7 * tokens, 3 * tokens)


def test_who_shares_a_run_hits_what_it_brings_and_waits_may_end_in_the_middle() -> None:
    world, engine = world_of(auto_tiers=False)
    other = world.engine("b")
    other.register(namespace())
    tokens = namespace().chunk_tokens
    keys = chain("x", 4)
    assert engine.save(keys[:1]) == 1
    world.give(0, engine, keys)
    for one in (engine, other):
        assert one.lookup(keys).pending == 3
    early = query(engine, wait_ms=20)
    world.wait(20_000_000)
    assert engine.answer(early).ready == 1
    world.settle()
    for one in (engine, other):
        assert one.answer(query(one)).ready == 4
    stats = world.core.stats()
    assert stats["requested_tokens"] == 8 * tokens
    assert (stats["hit_tokens_l1"], stats["hit_tokens_t"]) == (2 * tokens, 6 * tokens)
    assert stats["tier_t_hit_chunks"] == 3, "it brought them once"


def test_what_comes_after_the_wait_is_l1s_next_time() -> None:
    world, engine = world_of(auto_tiers=False)
    tokens = namespace().chunk_tokens
    keys = chain("x", 3)
    world.give(0, engine, keys)
    engine.lookup(keys)
    engine.ask(m.EndSession(session=engine.session, request=1))
    world.settle()
    assert engine.lookup(keys, request=2).ready == 3
    stats = world.core.stats()
    assert stats["requested_tokens"] == 6 * tokens
    assert stats["hit_tokens_l1"] == 3 * tokens
    assert "hit_tokens_t" not in stats
    assert stats["tier_t_hit_chunks"] == 3
