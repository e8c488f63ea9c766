"""What tiers say that they have of a prefix: in pieces, each for itself, for a bounded time."""

from __future__ import annotations

from protocol import messages as m
from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers.holding import ASK_NS, PIECE_CHUNKS
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import SECOND, Engine, chain, namespace

KEYS = chain("x", 3)


def world_of(*names: str) -> tuple[TierWorld, Engine]:
    """Tiers that are up and answer when told to, and an engine that saved KEYS."""
    world = TierWorld(tiered(*map(TierConfig, names)))
    for number in range(len(names)):
        world.up(number)
    a = world.engine()
    a.register(namespace())
    assert a.save(KEYS) == len(KEYS)
    world.wait(SECOND // 10)  # they are written below
    return world, a


def body(engine: Engine, keys: list[bytes], tiers: bool = True) -> m.Inspect:
    name = fingerprint(engine.space)
    return m.Inspect(fingerprint=name, keys=b"".join(keys), tiers=tiers)


def test_each_tier_says_what_it_has_and_only_who_asks_for_it_waits() -> None:
    world, a = world_of("warm", "cold")
    world.tiers[1].store.clear()
    assert a.ask(body(a, chain("x", 5))) == m.InspectReply(chunks=3, tiers={"warm": 3, "cold": 0})
    world.auto_tiers = False
    assert a.ask(body(a, KEYS, tiers=False)) == m.InspectReply(chunks=3)
    assert not world.tier_jobs


def test_a_long_prefix_is_asked_for_in_pieces_and_no_further_than_it_goes() -> None:
    world, a = world_of("warm")
    long = chain("x", 2 * PIECE_CHUNKS + 10)
    asked = a.send(body(a, long))
    world.pump()
    assert a.answer(asked).tiers == {"warm": 3}
    world.auto_tiers = False
    asked = a.send(body(a, long))
    world.pump()
    pieces = []
    for count in (PIECE_CHUNKS, PIECE_CHUNKS, 7):
        [job] = world.live(0, fx.TierProbe)
        pieces.append(len(job.keys) // 16)
        del world.tier_jobs[job.job]
        world.core.tier_probed(job.job, count, world.now_ns)
        world.pump()
    assert pieces == [PIECE_CHUNKS, PIECE_CHUNKS, 10]
    assert a.answer(asked).tiers == {"warm": 2 * PIECE_CHUNKS + 7}


def test_one_that_is_down_or_does_not_say_in_time_is_left_out() -> None:
    world, a = world_of("warm", "slow", "gone")
    world.down(2)
    world.auto_tiers = False
    asked = a.send(body(a, KEYS))
    world.pump()
    [warm] = world.live(0, fx.TierProbe)
    del world.tier_jobs[warm.job]
    world.core.tier_probed(warm.job, 2, world.now_ns)
    world.wait(ASK_NS + 1)
    assert a.answer(asked) == m.InspectReply(chunks=3, tiers={"warm": 2})
    [slow] = world.live(1, fx.TierProbe)
    del world.tier_jobs[slow.job]
    world.core.tier_probed(slow.job, 3, world.now_ns)  # too late: nobody waits any more
    world.pump()


def test_an_error_is_no_answer() -> None:
    world, a = world_of("warm")
    world.auto_tiers = False
    asked = a.send(body(a, KEYS))
    world.pump()
    [job] = world.live(0, fx.TierProbe)
    del world.tier_jobs[job.job]
    world.core.tier_probed(job.job, None, world.now_ns)
    world.pump()
    assert a.answer(asked).tiers == {}
