"""One arena, several owners: P17, P08, rule 4."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from protocol.ids import Fingerprint
from protocol.quotas import QuotaChange, TenantKind
from server.core import effects as fx
from server.core.growth import Demand
from server.core.reclaim import LOOKS, PATIENCE_NS
from tests.server.core.world import PAGE, SECOND, World, chain, config, namespace


def share(world: World, name: str) -> int:
    return sum(
        1
        for extent in world.core._state.arena.extents.values()
        if extent.owner.namespace.model_id == name
    )


def test_p17_two_models_alternate_in_an_arena_too_small_for_both() -> None:
    world = World(config(extents=8, slots=8))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace("big", page_bytes=PAGE))
    first = [chain(f"a{n}", 8) for n in range(8)]
    for keys in first:
        assert a.save(keys) == 8
    assert share(world, "big") >= 7
    b.register(namespace("small", page_bytes=2 * PAGE))
    assert share(world, "small") == 1
    hits = {"a": 0, "b": 0}
    for turn in range(24):
        for name, engine in (("a", a), ("b", b)):
            world.step(SECOND)
            keys = chain(f"{name}{turn % 2}", 6)
            found = engine.lookup(keys)
            hits[name] += found.ready
            if found.ready:
                engine.retrieve(keys, found.lease, 0, found.ready)
                engine.release(found.lease)
            engine.end()
            assert engine.save(keys) == 6, (turn, name)
            world.check_claims()
    assert share(world, "big") >= 1
    assert share(world, "small") >= 2
    assert hits["a"] > 100
    assert hits["b"] > 100


def test_what_leaves_with_an_extent_is_counted_apart_from_what_made_room_at_home() -> None:
    world = World(config(extents=2, slots=4))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace("one"))
    a.save(chain("x", 4))
    a.save(chain("y", 4))
    world.step(SECOND)
    b.register(namespace("two"))
    stats = world.core.stats()
    assert stats["reclaimed_chunks"] == 8 - stats["chunks"] == 4
    assert stats.get("evicted_chunks", 0) == 0


def test_who_registers_while_an_extent_is_being_emptied_is_given_it() -> None:
    # The attempt may fail, and the extent stays: what it holds is offered to every engine then.
    world = World(config(extents=2, slots=600))
    a = world.engine("a", pages=600)
    a.register(namespace())
    keys = chain("x", 600)
    assert a.save(keys) == 600
    found = a.lookup(keys[:8])  # bars the eviction of the first eight
    state = world.core._state
    extent = min(state.arena.extents.values(), key=lambda one: one.extent)
    steps = state.reclaimer._empty(extent)
    next(steps)
    assert extent.phase.name == "EMPTYING"
    b = world.engine("b")
    b.register(namespace())
    for _ in steps:
        pass
    assert extent.phase.name == "LIVE"
    leased = b.lookup(keys[:8])
    assert leased.ready == 8
    b.retrieve(keys[:8], leased.lease, 0, 8)  # checks that every reader has it mapped
    assert a.release(found.lease) is not None


def test_extents_that_salts_keep_are_looked_at_a_few_a_slice_and_the_others_are_found() -> None:
    world = World(config(extents=12, slots=8))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace("one"))
    state = world.core._state
    a.tenant = b"s" * 16
    floor = QuotaChange(kind=TenantKind.SALT, tenant=a.tenant, floor_bytes=64 * PAGE)
    a.ask(m.Quotas(change=floor))
    kept = [chain(f"k{number}", 8) for number in range(8)]
    a.save([key for keys in kept for key in keys])
    a.tenant = b""
    for number in range(6):
        world.step(SECOND)
        a.save(chain(f"o{number}", 8))
    (owner,) = state.roster.owners.values()
    demand = Demand(replace(owner, fingerprint=Fingerprint(b"n" * 16), extents=[[]]), 0)
    for kept_extents in (LOOKS, 2 * LOOKS):
        assert state.reclaimer._victim(demand, True) == (None, False)
        assert sum(extent.not_before_ns > 0 for extent in owner.extents[0]) == kept_extents
    victim, is_sure = state.reclaimer._victim(demand, True)
    assert victim is not None
    assert is_sure
    world.step(2 * SECOND)
    assert b.register(namespace("two")) > 0, "one slice after the other finds it"
    assert a.lookup(kept[0]).ready == 8


def test_p17_a_registration_without_room_is_told_what_it_needs() -> None:
    world = World(config(extents=2, slots=4))
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace("one"))
    b.register(namespace("two"))
    c = world.engine("c")
    with pytest.raises(ReplyError, match="NO_ROOM") as refused:
        c.register(namespace("three"))
    assert refused.value.detail["needed_bytes"] == 6 * PAGE
    assert refused.value.code is ErrorCode.NO_ROOM
    assert world.core.stats()["sessions"] == 2
    a.die()
    assert c.register(namespace("three")) > 0


def test_a_namespace_whose_chunk_exceeds_the_arena_is_refused() -> None:
    world = World(config(extents=2, slots=4))
    a = world.engine("a", pages=1)
    with pytest.raises(ReplyError, match="NO_ROOM") as refused:
        a.register(namespace(page_bytes=64 * PAGE))
    assert int(refused.value.detail["needed_bytes"]) > 64 * PAGE


def test_rule_4_memory_counts_until_every_reader_unmapped_it() -> None:
    world = World(config(extents=2, slots=4), auto_map=False)
    a = world.engine("a")
    a.register(namespace("one"))
    a.report()
    a.save(chain("x", 8))
    a.report()
    world.pump()
    b = world.engine("b")
    world.core.pool_offered(b.process, b.pool, 256 * PAGE)
    seq = b.send(b.register_body(namespace("two")))
    world.pump()
    assert seq not in b.replies
    assert len(a.to_unmap) == 1
    assert world.core.stats()["arena_quarantined_bytes"] > 0
    assert not any(isinstance(effect, fx.RemoveExtent) for effect in world.log)
    a.report()
    world.pump()
    assert b.answer(seq).session == 2
    assert world.core.stats()["arena_quarantined_bytes"] == 0


def test_rule_4_a_reader_that_exits_counts_as_unmapped() -> None:
    world = World(config(extents=2, slots=4), auto_map=False)
    a, other = world.engine("a"), world.engine("other")
    a.register(namespace("one"))
    other.register(namespace("one"))
    for engine in (a, other):
        engine.report()
    a.save(chain("x", 8))
    b = world.engine("b")
    world.core.pool_offered(b.process, b.pool, 256 * PAGE)
    seq = b.send(b.register_body(namespace("two")))
    world.pump()
    a.report()
    world.pump()
    assert seq not in b.replies
    other.die()
    assert b.answer(seq).session > 0


def test_a_stopped_reader_holds_up_nobody_else() -> None:
    world = World(config(extents=4, slots=4), auto_map=False)
    stopped, other = world.engine("stopped"), world.engine("other")
    for engine, name in ((stopped, "one"), (other, "two")):
        engine.register(namespace(name))
        engine.report()
        assert engine.save(chain(name, 6)) == 6
        engine.report()
        world.step(SECOND)
    b = world.engine("b")
    world.core.pool_offered(b.process, b.pool, 256 * PAGE)
    seq = b.send(b.register_body(namespace("three")))
    world.pump()
    assert len(stopped.to_unmap) == 1, "the oldest one is taken first"
    world.step(PATIENCE_NS)
    world.core.tick(world.now_ns)
    world.pump()
    assert len(other.to_unmap) == 1
    assert world.core.stats()["arena_quarantined_bytes"] > 0
    other.report()
    world.pump()
    assert b.answer(seq).session > 0
    assert len(stopped.to_unmap) == 1, "nothing more is taken from who does not answer"
    stopped.report()
    world.pump()
    assert world.core.stats()["arena_quarantined_bytes"] == 0


def test_where_only_a_stopped_reader_could_make_room_there_is_none_at_once() -> None:
    world = World(config(extents=2, slots=4), auto_map=False)
    stopped, b = world.engine("stopped"), world.engine("b")
    stopped.register(namespace("one"))
    stopped.report()
    assert stopped.save(chain("one", 6)) == 6
    stopped.report()
    world.core.pool_offered(b.process, b.pool, 256 * PAGE)
    seq = b.send(b.register_body(namespace("two")))
    world.pump()
    assert seq not in b.replies
    world.step(PATIENCE_NS)
    world.core.tick(world.now_ns)
    world.pump()
    error = b.replies[seq].error
    assert error is not None
    assert error.code == ErrorCode.NO_ROOM


def test_an_extent_that_is_read_is_never_taken() -> None:
    world = World(config(extents=2, slots=4))
    a = world.engine("a")
    a.register(namespace("one"))
    keys = chain("x", 8)
    a.save(keys)
    lease = a.lookup(keys).lease
    a.retrieve(keys, lease, 0, 8)
    b = world.engine("b")
    with pytest.raises(ReplyError, match="NO_ROOM"):
        b.register(namespace("two"))
    a.release(lease)
    world.step(10 * SECOND)
    assert b.register(namespace("two")) > 0


def test_p08_incomplete_chunks_go_first_after_their_time() -> None:
    world = World(config(extents=4, slots=4, incomplete_timeout_s=10.0))
    ranks = [world.engine("a", rank) for rank in range(2)]
    for engine in ranks:
        engine.register(namespace(ranks=2))
    whole, half = chain("whole", 4), chain("half", 4)
    for engine in ranks:
        engine.save(whole)
    ranks[0].save(half)
    world.step(20 * SECOND)
    ranks[0].lookup(whole)
    ranks[0].end()
    new = chain("new", 4)
    for engine in ranks:
        assert engine.save(new) == 4
    state = world.core._state
    (owner,) = state.roster.owners.values()
    assert owner.index.find(half[-1]) == -1
    assert ranks[0].lookup(whole).ready == 4
    stats = world.core.stats()
    assert stats["evicted_incomplete_chunks"] == stats["evicted_chunks"] == 4


def test_p08_what_a_dead_engine_left_incomplete_goes_first() -> None:
    world = World(config(extents=4, slots=4))
    space = namespace(ranks=2)
    ranks = [world.engine("a", rank) for rank in range(2)]
    dying = [world.engine("b", rank) for rank in range(2)]
    for engine in (*ranks, *dying):
        engine.register(space)
    whole, half = chain("whole", 4), chain("half", 4)
    for engine in ranks:
        engine.save(whole)
    dying[0].save(half)
    for engine in dying:
        engine.die()
    for engine in ranks:
        assert engine.save(chain("new", 4)) == 4
    (owner,) = world.core._state.roster.owners.values()
    assert owner.index.find(half[-1]) == -1
    assert ranks[0].lookup(whole).ready == 4


def test_no_room_is_an_answer_when_all_is_read() -> None:
    world = World(config(extents=1, slots=4))
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 4)
    a.save(keys)
    lease = a.lookup(keys).lease
    a.retrieve(keys, lease, 0, 4)
    reply = a.store(chain("y", 2))
    assert (reply.copied, reply.stop.name) == (0, "NO_ROOM")
    a.release(lease)
    a.end()
    assert a.save(chain("y", 2)) == 2


def test_a_full_tmpfs_is_an_answer_and_is_tried_again_later() -> None:
    world = World(config(extents=4, slots=4), auto_extents=True)
    a = world.engine("a")
    a.register(namespace())
    world.auto_extents = False
    keys = chain("x", 6)
    seq = a.send(a.store_body(keys))
    world.pump()
    (effect,) = world.pending
    assert isinstance(effect, fx.CreateExtent)
    assert seq not in a.replies
    world.create(effect, "No space left on device")
    world.pump()
    reply = a.answer(seq)
    assert (reply.copied, reply.stop.name) == (4, "NO_ROOM")
    assert a.commit(1, 4).published == 4
    world.auto_extents = True
    world.step(2 * SECOND)
    assert a.save(keys) == 6


def test_an_extent_is_emptied_a_few_chunks_at_a_time() -> None:
    world = World(config(extents=2, slots=600))
    a = world.engine("a", pages=600)
    a.register(namespace())
    assert a.save(chain("x", 600)) == 600
    state = world.core._state
    extent = min(state.arena.extents.values(), key=lambda one: one.extent)
    before = extent.num_held
    for _ in state.reclaimer._empty(extent):
        assert before - extent.num_held <= 32
        before = extent.num_held
    assert not before
