"""What an engine says about itself."""

from __future__ import annotations

from protocol import messages as m
from protocol.errors import ErrorCode
from server.core import effects as fx
from tests.server.core.world import PAGE, World, chain, config, namespace


def test_unknown_extents_in_mapped_change_nothing() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    body = m.Mapped(session=1, mapped=b"\x63\0\0\0" * 9, unmapped=b"\x64\0\0\0")
    assert isinstance(a.ask(body), m.Done)


def test_a_heartbeat_keeps_the_leases_it_names_and_ends_the_others() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    keys = chain("x", 3)
    a.save(keys)
    for request in (1, 2):
        assert a.lookup(keys, request=request).ready == 3
    beat = m.Heartbeat(session=a.session, requests=(2).to_bytes(8, "little"))
    assert len(a.ask(beat).epoch) == 16
    assert world.core.stats()["leases"] == 1
    assert a.ask(beat).missing_ranks == 0
    ragged = m.Heartbeat(session=a.session, requests=b"123")
    assert a.error(ragged) is ErrorCode.COUNT_MISMATCH


def test_a_heartbeat_says_how_many_ranks_are_missing() -> None:
    world = World(config(), auto_pools=False)
    space = namespace(ranks=3)
    ranks = [world.engine("a", rank) for rank in range(3)]

    def missing() -> int:
        reply: m.HeartbeatReply = ranks[0].ask(m.Heartbeat(session=ranks[0].session))
        return reply.missing_ranks

    for rank, engine in enumerate(ranks):
        world.core.pool_offered(engine.process, engine.pool, 256 * PAGE)
        seq = engine.send(engine.register_body(space))
        world.pump()
        if rank:
            assert missing() == 3 - rank  # one that is being registered is not there yet
        effect = world.pending.pop()
        assert isinstance(effect, fx.OpenPool)
        world.open(effect)
        world.pump()
        engine.session = engine.answer(seq).session
        assert missing() == 2 - rank
    ranks[2].die()
    assert missing() == 1
