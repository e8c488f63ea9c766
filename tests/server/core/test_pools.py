"""Mappings of pools, and copiers that are lost."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from server.core import effects as fx
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
