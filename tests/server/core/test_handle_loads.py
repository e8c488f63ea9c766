"""References, counts and slices of what loads ask."""

from __future__ import annotations

from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.limits import MAX_SLOTS_PER_REPLY
from server.core import effects as fx
from server.core.lease import PIN_SLOTS
from tests.server.core.world import SECOND, World, chain, config, namespace


def test_replies_stay_within_the_frame() -> None:
    # 40 ranks make 40 descriptors a chunk: 820 chunks would exceed one reply.
    world = World(config(extents=180, slots=900), check=False)
    space = namespace(ranks=40)
    engines = [world.engine("a", rank, pages=820) for rank in range(40)]
    for engine in engines:
        engine.register(space)
    keys = chain("x", 820)
    for engine in engines:
        engine.save(keys)
    found = engines[0].lookup(keys)
    assert found.ready == 820
    count = MAX_SLOTS_PER_REPLY // 40
    body = m.Retrieve(session=1, lease=found.lease, start=0, count=count + 1)
    assert engines[0].error(body) is ErrorCode.TOO_LARGE
    slots = engines[0].retrieve(keys, found.lease, 0, count)
    assert slots.shape == (count, 40)
    frames = [effect.frame for effect in world.log if isinstance(effect, fx.SendReply)]
    assert max(map(len, frames)) < 1 << 20
    world.core.check_integrity()


def test_a_long_release_comes_in_slices_and_counts_each_chunk_once() -> None:
    count = 2 * PIN_SLOTS + 100
    world = World(config(extents=6, slots=800), check=False)
    a = world.engine(pages=count)
    a.register(namespace())
    keys = chain("x", count)
    assert a.save(keys) == count
    found = a.lookup(keys)
    a.retrieve(keys, found.lease, 0, count)
    slots = world.core._state.slots
    a.claims.clear()
    first = a.send(m.Release(session=a.session, lease=found.lease))
    pinned = [int((slots.pins > 0).sum())]
    again = a.send(m.Release(session=a.session, lease=found.lease))
    while world.core.work(world.now_ns):
        pinned.append(int((slots.pins > 0).sum()))
    world.pump()
    assert pinned[0] == count
    assert max(b - a for a, b in zip(pinned[1:], pinned, strict=False)) <= PIN_SLOTS
    assert int((slots.pins > 0).sum()) == 0
    assert a.answer(first).chunks + a.answer(again).chunks == count
    assert world.core.stats()["leases"] == 0
    world.core.check_integrity()


def test_a_long_release_that_nobody_waits_for_goes_on() -> None:
    count = PIN_SLOTS + 100
    world = World(config(extents=4, slots=800), check=False)
    a = world.engine(pages=count)
    a.register(namespace())
    keys = chain("x", count)
    assert a.save(keys) == count
    found = a.lookup(keys)
    a.retrieve(keys, found.lease, 0, count)
    a.claims.clear()
    late = a.send(m.Release(session=a.session, lease=found.lease), timeout_ns=SECOND)
    world.step(2 * SECOND)
    world.core.tick(world.now_ns)
    world.pump()
    error = a.replies[late].error
    assert error is not None
    assert error.code is ErrorCode.DEADLINE_EXCEEDED
    assert world.core.stats()["pinned_slots"] == 0
    world.core.check_integrity()
