"""Mappings of pools, and copiers that are lost."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from server.core import effects as fx
from server.core.pools import REOPEN_NS
from tests.server.core.world import PAGE, World, chain, config, namespace


def test_a_pool_that_cannot_be_mapped_is_an_error_and_may_be_tried_again() -> None:
    world = World(config(), auto_pools=False)
    a = world.engine("a")
    world.core.pool_offered(a.process, a.pool, 256 * PAGE)
    seq = a.send(a.register_body(namespace()))
    world.pump()
    (effect,) = world.pending
    assert isinstance(effect, fx.OpenPool)
    world.open(effect, "mmap said no")
    world.pump()
    with pytest.raises(ReplyError, match="POOL_INVALID: mmap said no"):
        a.answer(seq)
    world.auto_pools = True
    assert a.ask(a.register_body(namespace())).session == 2


def test_a_lost_copier_fails_what_it_had_and_pools_are_asked_again() -> None:
    world = World(config(), auto_copies=False)
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 4)
    seq = a.send(a.store_body(keys))
    world.pump()
    world.jobs.clear()
    world.pools.clear()
    world.core.copier_lost(fx.HOST_COPIER, world.now_ns)
    world.pump()
    assert a.answer(seq).stop is m.StopReason.COPY_FAILED
    assert a.error(a.store_body(keys)) is ErrorCode.UNAVAILABLE
    world.core.copier_ready(fx.HOST_COPIER, world.now_ns)
    world.pump()
    world.auto_copies = True
    assert a.save(keys) == 4


def test_a_dead_copier_is_not_asked_to_close_a_pool() -> None:
    world = World(config(), auto_copies=False)
    a = world.engine()
    a.register(namespace())
    a.send(a.store_body(chain("x", 2)))
    world.pump()
    leaving = a.send(a.unregister_body())
    world.pump()
    assert leaving not in a.replies
    world.log.clear()
    world.jobs.clear()
    world.core.copier_lost(fx.HOST_COPIER, world.now_ns)
    world.pump()
    assert not [effect for effect in world.log if isinstance(effect, fx.ClosePool)]
    assert isinstance(a.answer(leaving), m.Done)
    assert world.core.stats()["sessions"] == 0
    world.core.copier_ready(fx.HOST_COPIER, world.now_ns)
    world.pump()
    assert not [effect for effect in world.log if isinstance(effect, fx.OpenPool)]
    world.core.check_integrity()


def test_a_copier_that_does_not_die_keeps_its_slots_and_nothing_else() -> None:
    world = World(config(extents=1, slots=8), auto_copies=False)
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    stored = a.send(a.store_body(chain("x", 4)))
    world.pump()
    written = {int(target) for job in world.jobs.values() for target in job.targets}
    late = dict(world.jobs)
    world.jobs.clear()
    world.pools.clear()
    leaving = a.send(a.unregister_body())
    world.core.copier_stuck(fx.HOST_COPIER, 1, world.now_ns)
    world.pump()
    with pytest.raises(ReplyError, match="COPY_FAILED"):
        a.answer(stored)
    assert leaving not in a.replies  # answered when no copy can touch the pool any more
    values = world.core.stats()
    assert (values["copiers_stuck"], values["copies_stranded"]) == (1, len(late))
    assert values["slots_reserved"] == 4
    world.core.copier_ready(fx.HOST_COPIER, world.now_ns)
    world.auto_copies = True
    world.pump()
    # Another engine goes on in the slots that are left, evicting what it must.
    for number in range(4):
        assert b.save(chain(f"y{number}", 4)) == 4
    copies = [effect for effect in world.log if isinstance(effect, fx.StartCopy)]
    others = {int(t) for copy in copies if copy.job not in late for t in copy.targets}
    assert others
    assert not others & written
    world.core.copier_gone(fx.HOST_COPIER, 1, world.now_ns)
    world.pump()
    assert isinstance(a.answer(leaving), m.Done)
    values = world.core.stats()
    assert (values["copiers_stuck"], values["slots_reserved"], values["sessions"]) == (0, 0, 1)
    assert b.save(chain("z", 8)) == 8
    world.core.check_integrity()


@pytest.mark.parametrize("device", [b"", b"d" * 16])
def test_a_pool_that_the_next_copier_cannot_open_is_asked_for_again(device: bytes) -> None:
    world = World(config())
    a = world.engine("a")
    a.device = device
    a.register(namespace())
    copier = fx.CopierId(1 if device else 0)
    world.auto_pools = False
    world.lose(copier)
    world.begin(fx.StartCopier(copier, device))
    world.pump()
    (asked,) = world.pending
    world.pending.clear()
    world.act(asked, "not now")
    world.pump()
    assert a.error(a.store_body(chain("x", 2))) is ErrorCode.UNAVAILABLE
    world.step(REOPEN_NS // 2)
    world.lose(copier)  # what comes in between does not ask twice
    world.begin(fx.StartCopier(copier, device))
    world.pump()
    assert not world.pending
    world.auto_pools = True
    world.step(REOPEN_NS // 2)
    world.core.tick(world.now_ns)
    world.pump()
    assert a.save(chain("x", 2)) == 2
    assert len(world.pools) == 1


def test_a_pool_that_cannot_be_opened_again_is_not_asked_for_after_its_session() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    world.auto_pools = False
    world.lose(fx.HOST_COPIER)
    world.begin(fx.StartCopier(fx.HOST_COPIER, b""))
    world.pump()
    (asked,) = world.pending
    world.pending.clear()
    world.act(asked, "not now")
    assert a.ask(a.unregister_body()) == m.Done()
    world.step(REOPEN_NS)
    world.core.tick(world.now_ns)
    world.pump()
    assert not world.pending
