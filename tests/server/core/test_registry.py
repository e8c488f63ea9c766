"""Registering, leaving, dying (B16, P12, rule 5) and what limits say."""

from __future__ import annotations

import pytest

from protocol import limits
from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from protocol.layout import CudaIpcMemory, MemfdMemory, RingMemory
from server.core import effects as fx
from tests.server.core.world import PAGE, SECOND, World, chain, config, namespace


def test_registrations_that_are_wrong_are_refused() -> None:
    world = World(config())
    a = world.engine("a")
    world.core.pool_offered(a.process, a.pool, 256 * PAGE)
    good = a.register_body(namespace())

    def changed(**fields: object) -> m.RegisterKvCache:
        values = {name: getattr(good, name) for name in good.__struct_fields__}
        return m.RegisterKvCache(**{**values, **fields})

    def memfd(pool: bytes = a.pool, size_bytes: int = 256 * PAGE) -> MemfdMemory:
        return MemfdMemory(pool=pool, size_bytes=size_bytes)

    other = namespace(page_bytes=2 * PAGE)
    assert a.error(changed(memory=memfd(pool=b"?" * 16))) is ErrorCode.POOL_INVALID
    assert a.error(changed(memory=memfd(size_bytes=PAGE))) is ErrorCode.POOL_INVALID
    assert a.error(changed(namespace=other)) is ErrorCode.PAGE_SIZE_MISMATCH
    assert a.error(changed(rank=1)) is ErrorCode.INVALID_ARGUMENT
    assert a.error(changed(memory=None)) is ErrorCode.INVALID_ARGUMENT
    assert a.error(changed(pools=())) is ErrorCode.INVALID_ARGUMENT
    assert a.error(changed(pools=good.pools * 2)) is ErrorCode.INVALID_ARGUMENT
    ring = RingMemory(pool=b"?" * 16, size_bytes=256 * PAGE)
    assert a.error(changed(memory=ring)) is ErrorCode.POOL_INVALID
    cuda = CudaIpcMemory(
        handle=b"h" * 64, device_uuid=b"u" * 16, base_offset_bytes=0, size_bytes=PAGE
    )
    assert a.error(changed(memory=cuda)) is ErrorCode.POOL_INVALID  # pages that reach outside
    assert world.core.stats()["sessions"] == 0
    assert world.core.stats()["namespaces"] == 0
    assert a.ask(good).session == 1
    assert a.error(good) is ErrorCode.POOL_INVALID
    b = world.engine("a", rank=0)
    world.core.pool_offered(b.process, b.pool, 256 * PAGE)
    assert b.error(b.register_body(namespace())) is ErrorCode.DUPLICATE
    assert b.error(b.register_body(namespace("other"))) is ErrorCode.INVALID_ARGUMENT


def test_a_ring_is_taken_mapped_and_dropped_like_a_pool() -> None:
    world = World(config())
    a = world.engine("a")
    a.ring = True
    a.register(namespace())
    (opened,) = [effect for effect in world.log if isinstance(effect, fx.OpenPool)]
    assert isinstance(opened.memory, RingMemory)
    assert opened.pool == a.pool
    keys = chain("x", 4)
    assert a.save(keys) == 4
    assert a.lookup(keys).ready == 4
    world.core.copier_lost(fx.HOST_COPIER, world.now_ns)
    world.core.copier_ready(fx.HOST_COPIER, world.now_ns)
    world.pump()
    assert a.save(chain("y", 4)) == 4
    assert a.ask(a.unregister_body()) == m.Done()
    (dropped,) = [effect for effect in world.log if isinstance(effect, fx.DropPoolOffer)]
    assert dropped.pool == a.pool


def test_a_reader_without_memory_loads_and_cannot_store() -> None:
    world = World(config())
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    keys = chain("x", 4)
    a.save(keys)
    b.space = namespace()
    b.session = b.ask(
        m.RegisterKvCache(namespace=namespace(), rank=0, memory=None, pools=())
    ).session
    b.report()
    world.pump()
    lease = b.lookup(keys).lease
    b.retrieve(keys, lease, 0, 4)
    assert b.error(b.store_body(keys)) is ErrorCode.INVALID_ARGUMENT


def test_registering_past_its_deadline_is_undone() -> None:
    world = World(config(), auto_pools=False)
    a = world.engine("a")
    world.core.pool_offered(a.process, a.pool, 256 * PAGE)
    seq = a.send(a.register_body(namespace()), timeout_ns=SECOND)
    world.pump()
    world.step(2 * SECOND)
    world.core.tick(world.now_ns)
    world.pump()
    with pytest.raises(ReplyError, match="DEADLINE_EXCEEDED"):
        a.answer(seq)
    (effect,) = world.pending
    world.auto_pools = True
    world.open(effect)  # type: ignore[arg-type]
    world.pump()
    assert world.core.stats()["sessions"] == 0
    assert not world.pools


def test_a_quiet_process_without_anything_gives_its_place_back() -> None:
    world = World(config(max_processes=3))
    a = world.engine("a")
    a.register(namespace())
    for _ in range(10):
        b = world.engine("b")
        world.core.pool_offered(b.process, b.pool, PAGE)
        world.core.process_quiet(b.process, world.now_ns)
        world.pump()
        assert fx.DropPoolOffer(b.process, b.pool) in world.log
        assert fx.ForgetProcess(b.process) in world.log
        assert b.error(m.Ping()) is ErrorCode.UNAUTHENTICATED
    assert world.core.stats()["processes"] == 1
    world.core.process_quiet(fx.ProcessId(999), world.now_ns)  # one that was refused
    world.pump()
    assert fx.ForgetProcess(fx.ProcessId(999)) in world.log
    # With a session it stays: that ends by its exit, or by its own word, which is answered.
    world.core.process_quiet(a.process, world.now_ns)
    world.pump()
    assert world.core.stats()["processes"] == 1
    a.mapped.clear()
    assert isinstance(a.ask(m.Unregister(session=a.session)), m.Done)
    assert world.core.stats()["processes"] == 0
    assert fx.ForgetProcess(a.process) in world.log


def test_strangers_and_idlers_cost_nothing_that_grows() -> None:
    world = World(config(max_processes=3, max_pools_per_process=2, max_sessions_per_process=1))
    a = world.engine("a")
    for number in range(1000):
        peer = fx.PeerId(number.to_bytes(5, "big"))
        world.core.request(peer, b"\xc1 garbage", world.now_ns)
        world.core.pool_offered(a.process, type(a.pool)(number.to_bytes(16, "big")), PAGE)
    world.core.take_effects()
    assert world.core.stats()["connections"] == 1
    assert len(world.core._state.peers.processes[a.process].pools) == 2
    world.engine("b")
    world.engine("c")
    late = world.next_process
    refused = world.engine("d").replies.popitem()[1].error
    assert refused is not None
    assert refused.code is ErrorCode.UNAUTHENTICATED
    assert any(
        isinstance(effect, fx.DropProcess) and effect.process == late for effect in world.log
    )


def test_registrations_of_one_process_are_bounded() -> None:
    world = World(config(max_sessions_per_process=1))
    a = world.engine("a")
    a.register(namespace(ranks=2))
    a.rank = 1
    assert a.error(a.register_body(namespace(ranks=2))) is ErrorCode.LIMIT_EXCEEDED


def test_connections_of_one_token_are_bounded_and_the_oldest_goes() -> None:
    world = World(config())
    a = world.engine("a")
    first = a.peer
    for number in range(20):
        a.peer = fx.PeerId(b"\1" + number.to_bytes(4, "big"))
        a.hello()
    assert world.core.stats()["connections"] == limits.MAX_CONNECTIONS_PER_TOKEN
    a.peer = first
    assert a.error(m.Ping()) is ErrorCode.UNAUTHENTICATED
    a.hello()
    assert isinstance(a.ask(m.Ping()), m.Done)


def test_a_connection_in_use_is_not_the_one_that_goes() -> None:
    world = World(config())
    a = world.engine("a")
    first = a.peer
    for number in range(20):  # a keeper that reconnects, beside a scheduler that works
        a.peer = fx.PeerId(b"\1" + number.to_bytes(4, "big"))
        a.hello()
        a.peer = first
        assert isinstance(a.ask(m.Ping()), m.Done)
    assert world.core.stats()["connections"] == limits.MAX_CONNECTIONS_PER_TOKEN


def test_what_is_owed_to_a_connection_that_goes_is_still_sent() -> None:
    world = World(config(), auto_copies=False)
    a = world.engine("a")
    a.register(namespace())
    seq = a.send(a.store_body(chain("x", 3)))
    first = a.peer
    for number in range(limits.MAX_CONNECTIONS_PER_TOKEN):
        a.peer = fx.PeerId(b"\1" + number.to_bytes(4, "big"))
        a.hello()
    a.peer = first
    world.finish(next(iter(world.jobs)))
    world.pump()
    assert a.answer(seq).copied == 3


def test_requests_and_stores_of_one_connection_are_bounded() -> None:
    world = World(config(extents=2, slots=4), auto_copies=False, check=False)
    a = world.engine("a")
    a.register(namespace())
    seqs = [a.send(a.store_body(chain(f"x{n}", 1))) for n in range(200)]
    world.pump()
    busy = [seq for seq in seqs if (reply := a.replies.get(seq)) and reply.error]
    assert len(busy) >= 200 - limits.MAX_OUTSTANDING_REQUESTS
    assert world.core.stats()["replies_owed"] <= limits.MAX_OUTSTANDING_REQUESTS
    world.core.check_integrity()


def test_a_dropped_peer_gets_no_more_replies_and_its_stores_end() -> None:
    world = World(config(), auto_copies=False)
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 3)
    a.send(a.store_body(keys))
    world.pump()
    dropped = world.core.peer_dropped(a.peer)
    assert dropped.instance is not None
    assert dropped.name.startswith("a process"), dropped.name
    assert world.core.peer_dropped(a.peer, is_closed=True).instance is None  # known no more
    assert world.core.stats()["replies_unheard"] == 1
    before = len([effect for effect in world.log if isinstance(effect, fx.SendReply)])
    world.finish(next(iter(world.jobs)))
    world.pump()
    after = len([effect for effect in world.log if isinstance(effect, fx.SendReply)])
    assert before == after
    assert a.error(m.Ping()) is ErrorCode.UNAUTHENTICATED
    a.hello()
    assert a.commit(1, 3).published == 3


def test_extents_are_passed_in_order_of_their_last_use_most_used_first() -> None:
    world = World(config(extents=4, slots=2))
    a = world.engine("a")
    a.register(namespace())
    for number in range(4):
        assert a.save(chain(f"x{number}", 2)) == 2
        world.step(SECOND)
    lease = a.lookup(chain("x1", 2)).lease
    a.retrieve(chain("x1", 2), lease, 0, 2)
    world.log.clear()
    world.engine("b").register(namespace())
    given = [effect for effect in world.log if isinstance(effect, fx.GiveExtent)]
    assert [effect.geometry.extent for effect in given] == [2, 4, 3, 1]
