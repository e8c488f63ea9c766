"""Hot prefixes: which are told, in which order, how few are kept, and what a flood comes to."""

from __future__ import annotations

import random

from protocol import messages as m
from protocol.ids import ID_BYTES, Fingerprint
from protocol.namespace import fingerprint
from protocol.prefixes import HEAD_BYTES, MAX_PREFIXES, PrefixStatus
from server.core.clock import Clock
from server.core.heat import BATCH, HALF_LIFE_S, WATCHED, Heat
from server.core.namespaces import Owner
from tests.server.core.tiers.reading import query, world_of
from tests.server.core.world import SECOND, Engine, World, chain, config, namespace


def prefixes(engine: Engine) -> tuple[PrefixStatus, ...]:
    reply = engine.ask(m.Status())
    assert isinstance(reply, m.StatusReply)
    return reply.prefixes


def test_the_most_found_is_told_first_and_by_its_beginning_only() -> None:
    world = World(config())
    engine = world.engine()
    engine.register(namespace())
    often, seldom, apart = chain("often", 4), chain("seldom", 2), chain("apart", 3)
    for keys in (often, seldom):
        engine.save(keys)
    for request in range(1, 4):
        engine.lookup(often[: request + 1], request=request)
    engine.lookup(seldom + apart, request=9)
    engine.lookup(apart, request=10)  # nothing is found
    engine.lookup(often, start=2, request=11)  # which prefix, nobody has said
    world.step(2 * SECOND)
    first, second = prefixes(engine)
    assert (first.head, first.hits, first.chunks) == (often[0][:HEAD_BYTES], 3, 4)
    assert (second.head, second.hits, second.chunks) == (seldom[0][:HEAD_BYTES], 1, 2)
    assert first.fingerprint == fingerprint(namespace())
    assert 2.0 <= first.idle_s < 3.0
    # What L1 holds no more is not told.
    engine.ask(m.Clear(fingerprint=first.fingerprint))
    assert prefixes(engine) == ()


def test_what_a_tier_brought_counts_once() -> None:
    world, engine = world_of(auto_tiers=False)
    keys = chain("x", 3)
    world.give(0, engine, keys)
    assert engine.lookup(keys).ready == 0
    seq = query(engine)
    world.settle()
    assert engine.answer(seq).ready == 3
    [row] = prefixes(engine)
    assert (row.hits, row.chunks) == (1, 3)


class Held:
    """An owner whose index has every key, or those that are given."""

    def __init__(self, name: bytes = b"n" * 16) -> None:
        self.fingerprint = Fingerprint(name)
        self.index = self

    def find(self, key: bytes) -> int:
        return 0


def noted(heat: Heat, owner: Owner, name: int, times: int = 1) -> None:
    for _ in range(times):
        heat.note(owner, 0, name.to_bytes(ID_BYTES, "big") * 2, 2)


def made() -> tuple[Clock, Heat, Owner]:
    clock = Clock(now_ns=SECOND)
    owner: Owner = Held()  # type: ignore[assignment]
    return clock, Heat(clock), owner


def test_few_are_kept_and_the_hot_ones_are_among_them() -> None:
    clock, heat, owner = made()
    draw = random.Random(5)
    for number in range(20_000):
        clock.advance(clock.now_ns + 1_000_000)
        # Every tenth is one of five; the others are all different.
        noted(heat, owner, draw.randrange(5) if number % 10 == 0 else 1000 + number)
        assert len(heat._found) <= WATCHED + BATCH
        assert len(heat._recent) <= BATCH
    told = heat.hottest({owner.fingerprint: owner})
    assert len(told) == MAX_PREFIXES
    heads = [bytes(HEAD_BYTES)] * 5  # numbers below 5 all begin with zeros
    assert [row.head for row in told[:5]] == heads
    assert all(300 < row.hits <= 400 + WATCHED for row in told[:5])


def test_of_many_that_are_equally_hot_the_last_found_are_told() -> None:
    clock, heat, owner = made()
    for number in range(1, WATCHED + 2):
        clock.advance(clock.now_ns + 1)
        noted(heat, owner, number << 80)
    told = heat.hottest({owner.fingerprint: owner})
    assert [row.head for row in told] == [
        (number << 80).to_bytes(ID_BYTES, "big")[:HEAD_BYTES]
        for number in range(WATCHED + 1, WATCHED + 1 - MAX_PREFIXES, -1)
    ]


def test_old_heat_is_worth_half_and_hits_are_not() -> None:
    clock, heat, owner = made()
    noted(heat, owner, 1 << 100, times=10)
    heat.hottest({owner.fingerprint: owner})
    clock.advance(clock.now_ns + int(HALF_LIFE_S * SECOND))
    noted(heat, owner, 2 << 100, times=6)
    first, second = heat.hottest({owner.fingerprint: owner})
    assert (first.hits, second.hits) == (6, 10)
    assert second.idle_s == HALF_LIFE_S


def test_a_flood_is_sampled_and_all_of_it_counts() -> None:
    clock, heat, owner = made()
    for number in range(10_000):
        clock.advance(clock.now_ns + 20_000)  # fifty thousand a second
        noted(heat, owner, (1 + number % 2) << 100)
    rows = heat.hottest({owner.fingerprint: owner})
    assert abs(sum(row.hits for row in rows) - 10_000) <= 2
    assert all(4_000 < row.hits < 6_000 for row in rows)


def test_other_namespaces_prefixes_are_others() -> None:
    _, heat, owner = made()
    other: Owner = Held(b"o" * 16)  # type: ignore[assignment]
    noted(heat, owner, 7)
    noted(heat, other, 7, times=2)
    both = {owner.fingerprint: owner, other.fingerprint: other}
    assert [row.fingerprint for row in heat.hottest(both)] == [b"o" * 16, b"n" * 16]
    assert [row.fingerprint for row in heat.hottest({owner.fingerprint: owner})] == [b"n" * 16]
