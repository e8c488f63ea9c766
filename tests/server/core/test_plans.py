"""STORE, COMMIT, CANCEL and what may come between (P07, P10, B25, P02)."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from server.core import effects as fx
from tests.server.core.world import SECOND, World, chain, config, namespace


def test_a_store_whose_room_comes_while_the_copier_is_away_is_answered_at_once() -> None:
    world = World(config(extents=2, slots=4))
    a = world.engine("a")
    a.register(namespace())
    world.auto_extents = False
    first = a.send(a.store_body(chain("x", 6)))
    world.pump()
    assert first not in a.replies  # it waits for a second extent
    world.core.copier_lost(fx.HOST_COPIER, world.now_ns)
    world.pools.clear()
    for wanted in [effect for effect in world.pending if isinstance(effect, fx.CreateExtent)]:
        world.pending.remove(wanted)
        world.create(wanted)
    world.pump()
    assert a.answer(first).copied == 4
    assert a.answer(first).stop is m.StopReason.COPY_FAILED
    world.core.copier_ready(fx.HOST_COPIER, world.now_ns)
    world.pump()
    assert a.save(chain("y", 2)) == 2


def test_a_store_whose_room_comes_before_the_next_copier_has_its_pool_copies_nothing() -> None:
    world = World(config(extents=2, slots=4))
    a = world.engine("a")
    a.register(namespace())
    world.auto_extents = world.auto_pools = False
    first = a.send(a.store_body(chain("x", 6)))
    world.pump()
    world.lose(fx.HOST_COPIER)
    world.running.add(fx.HOST_COPIER)
    world.core.copier_ready(fx.HOST_COPIER, world.now_ns)
    world.pump()
    for wanted in [effect for effect in world.pending if isinstance(effect, fx.CreateExtent)]:
        world.pending.remove(wanted)
        world.create(wanted)
    world.pump()
    assert a.answer(first).copied == 4
    assert a.answer(first).stop is m.StopReason.COPY_FAILED
    (opening,) = [effect for effect in world.pending if isinstance(effect, fx.OpenPool)]
    world.pending.remove(opening)
    world.open(opening)
    world.pump()
    assert a.save(chain("y", 2)) == 2


def test_cancel_is_answered_when_no_piece_flies_any_more() -> None:
    world = World(config(copy_window_bytes=4 * 4096, copy_piece_bytes=2 * 4096), auto_copies=False)
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 12)
    body = a.store_body(keys)
    stored = a.send(body)
    world.pump()
    assert len(world.jobs) == 2
    cancel = a.send(m.Cancel(session=a.session, store=body.store))
    world.pump()
    assert cancel not in a.replies
    first, second = list(world.jobs)
    world.finish(first)
    world.pump()
    assert cancel not in a.replies
    world.finish(second)
    world.pump()
    assert isinstance(a.answer(cancel), m.Done)
    with pytest.raises(ReplyError, match="UNKNOWN_STORE"):
        a.answer(stored)
    assert not world.jobs
    assert world.core.stats()["slots_reserved"] == 0
    assert isinstance(a.ask(m.Cancel(session=a.session, store=body.store)), m.Done)


def test_a_store_past_its_deadline_is_undone_after_its_copies() -> None:
    world = World(config(), auto_copies=False)
    a = world.engine("a")
    a.register(namespace())
    seq = a.send(a.store_body(chain("x", 4)), timeout_ns=SECOND)
    world.pump()
    world.step(2 * SECOND)
    world.core.tick(world.now_ns)
    world.pump()
    assert seq not in a.replies
    assert world.core.stats()["slots_reserved"] == 4
    world.finish(next(iter(world.jobs)))
    world.pump()
    with pytest.raises(ReplyError, match="DEADLINE_EXCEEDED"):
        a.answer(seq)
    assert world.core.stats()["slots_reserved"] == 0


def test_a_cancel_and_an_unregister_have_deadlines_and_go_on_all_the_same() -> None:
    world = World(config(), auto_copies=False)
    a = world.engine("a")
    a.register(namespace())
    body = a.store_body(chain("x", 4))
    a.send(body)
    world.pump()
    cancel = a.send(m.Cancel(session=a.session, store=body.store), timeout_ns=SECOND)
    gone = a.send(a.unregister_body(), timeout_ns=SECOND)
    world.pump()
    world.step(2 * SECOND)
    world.core.tick(world.now_ns)
    world.pump()
    for seq in (cancel, gone):
        with pytest.raises(ReplyError, match="DEADLINE_EXCEEDED"):
            a.answer(seq)
    world.finish(next(iter(world.jobs)))
    world.pump()
    assert world.core.stats()["sessions"] == 0
    assert world.core.drained()


def test_a_cancel_awaits_the_hanging_copier_of_its_store_and_no_copy_of_another() -> None:
    world = World(config(), auto_copies=False)
    a = world.engine("a")
    a.register(namespace())
    first = a.store_body(chain("x", 4))
    stored = a.send(first)
    cancel = a.begin(m.Cancel(session=a.session, store=first.store))
    world.lose(fx.HOST_COPIER, stuck_life=1)
    world.begin(fx.StartCopier(fx.HOST_COPIER, b""))
    world.pump()
    with pytest.raises(ReplyError, match="COPY_FAILED"):
        a.answer(stored)
    second = a.store_body(chain("y", 2))
    a.begin(second)
    assert world.copies_of(a.process, first.store)
    assert cancel not in a.replies  # the hanging copier has the pool's pages still
    world.see_stuck_die(fx.HOST_COPIER, 1)
    world.pump()
    assert not world.copies_of(a.process, first.store)
    assert world.copies_of(a.process, second.store)
    assert isinstance(a.answer(cancel), m.Done)


def test_an_unregister_awaits_a_hanging_copier_and_the_copies_of_the_next() -> None:
    world = World(config(), auto_copies=False)
    a = world.engine("a")
    a.register(namespace())
    a.begin(a.store_body(chain("x", 4)))
    world.lose(fx.HOST_COPIER, stuck_life=1)
    world.begin(fx.StartCopier(fx.HOST_COPIER, b""))
    world.pump()
    a.begin(a.store_body(chain("y", 2)))
    gone = a.begin(a.unregister_body())
    world.finish(next(iter(world.jobs)))
    world.pump()
    assert gone not in a.replies
    assert world.copies_of(a.process)
    world.see_stuck_die(fx.HOST_COPIER, 1)
    world.pump()
    assert isinstance(a.answer(gone), m.Done)
    assert not world.copies_of(a.process)
    assert world.core.drained()


def test_an_uncommitted_store_goes_after_its_time() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 4)
    a.store(keys)
    due = world.core.next_timer_ns()
    assert due is not None
    world.now_ns = due
    world.core.tick(world.now_ns)
    world.pump()
    assert world.core.stats()["stores"] == 0
    assert world.core.stats()["slots_reserved"] == 0
    assert a.save(keys) == 4


def test_p10_a_late_frame_for_another_incarnation_is_refused() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    a.store(chain("x", 2))
    welcome = a.client.welcome
    assert welcome is not None
    a.client.welcome = m.HelloReply(
        **{**{n: getattr(welcome, n) for n in welcome.__struct_fields__}, "epoch": b"O" * 16}
    )
    commit = m.Commit(session=a.session, store=a.last_store, count=2)
    assert a.error(commit) is ErrorCode.STALE_EPOCH
    assert world.core.stats()["slots_held"] == 0


def test_copies_that_fail_shorten_the_store() -> None:
    world = World(config(copy_piece_bytes=2 * 4096), auto_copies=False)
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 6)
    seq = a.send(a.store_body(keys))
    world.pump()
    jobs = list(world.jobs)
    assert len(jobs) == 3
    world.finish(jobs[2])
    world.finish(jobs[1], "the copier says no")
    world.finish(jobs[0])
    world.pump()
    reply = a.answer(seq)
    assert (reply.copied, reply.stop) == (2, m.StopReason.COPY_FAILED)
    assert a.commit(1, 2).published == 2
    assert a.lookup(keys).ready == 2


def test_sessions_take_turns_in_the_window() -> None:
    world = World(
        config(extents=8, slots=32, copy_window_bytes=4096, copy_piece_bytes=4096),
        auto_copies=False,
    )
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    long = a.send(a.store_body(chain("x", 30)))
    short = b.send(b.store_body(chain("y", 2)))
    world.pump()
    for _ in range(5):
        assert len(world.jobs) == 1
        world.finish(next(iter(world.jobs)))
        world.pump()
    assert short in b.replies
    assert long not in a.replies
