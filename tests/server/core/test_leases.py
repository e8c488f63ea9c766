"""Leases and pins: B22, B25, B41, B42, B13."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from protocol import limits
from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from protocol.namespace import LayerGroup
from tests.server.core.engine import Engine
from tests.server.core.world import PAGE, World, chain, config, namespace


def pinned(world: World) -> int:
    return world.core.stats()["pinned_slots"]


def locks(world: World) -> int:
    return sum(
        owner.index.locks[node]
        for owner in world.core._state.roster.owners.values()
        for node in owner.index.nodes()
    )


def test_b22_every_exit_gives_the_rest_back_at_once() -> None:
    world = World(config(), check=False)
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 10)
    a.save(keys)
    for request in range(1000):
        assert a.lookup(keys, request).ready == 10
        assert a.end(request).chunks == 10
        assert a.end(request).chunks == 0
    assert locks(world) == 0
    assert world.core.stats()["leases"] == 0
    lease = a.lookup(keys).lease
    a.retrieve(keys, lease, 0, 4)
    assert a.end().chunks == 6
    assert locks(world) == 0
    assert pinned(world) == 4
    assert a.release(lease).chunks == 4
    assert pinned(world) == 0
    world.core.check_integrity()


def test_a_new_lookup_replaces_the_unretrieved_lease_only() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    first = a.lookup(keys).lease
    a.retrieve(keys, first, 0, 2)
    second = a.lookup(keys).lease
    assert a.error(m.Retrieve(session=a.session, lease=first, start=2, count=1)) is (
        ErrorCode.UNKNOWN_LEASE
    )
    again = a.retrieve(keys, first, 0, 2)
    assert (again == a.retrieve(keys, second, 0, 2)).all()
    a.end()
    assert pinned(world) == 2
    a.release(first)
    assert pinned(world) == 2
    a.release(second)
    assert pinned(world) == 0


def test_b25_pressure_never_touches_what_is_read() -> None:
    world = World(config(extents=3, slots=8))
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 8)
    assert a.save(keys) == 8
    lease = a.lookup(keys).lease
    a.retrieve(keys, lease, 0, 8)
    a.end()
    for number in range(12):
        a.save(chain(f"other{number}", 8))
        world.check_claims()
    world.step(10**12)
    world.core.tick(world.now_ns)
    assert a.lookup(keys).ready == 8
    a.end()
    a.release(lease)
    for number in range(12, 24):
        a.save(chain(f"other{number}", 8))
    assert a.lookup(keys).ready < 8


def test_an_unretrieved_lease_protects_its_prefix() -> None:
    world = World(config(extents=2, slots=8))
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    lease = a.lookup(keys).lease
    for number in range(8):
        a.save(chain(f"other{number}", 8))
    assert a.retrieve(keys, lease, 0, 6).size == 6


def test_b41_the_offer_is_what_all_ranks_hold_and_surplus_pins_go() -> None:
    world = World(config(extents=8, slots=16))
    ranks = [world.engine("a", rank) for rank in range(2)]
    space = namespace(ranks=2)
    for engine in ranks:
        engine.register(space)
    keys = chain("x", 10)
    assert ranks[0].save(keys) == 10
    assert ranks[0].lookup(keys).ready == 0
    assert ranks[1].save(keys[:7]) == 7
    found = ranks[0].lookup(keys)
    assert found.ready == 7
    slots = ranks[0].retrieve(keys, found.lease, 0, 7)
    assert slots.shape == (7, 2)
    assert pinned(world) == 14
    ranks[0].end()
    ranks[0].release(found.lease)
    assert pinned(world) == 7
    ranks[1].die()
    assert pinned(world) == 0
    assert ranks[0].lookup(keys).ready == 0


def test_b42_one_replicated_shard_is_pinned_per_reader() -> None:
    world = World(config(extents=2, slots=8))
    group = LayerGroup(layers=(0,), page_bytes=PAGE, replicated=True)
    space = namespace(ranks=4, groups=(group,))
    ranks = [world.engine("a", rank) for rank in range(4)]
    for engine in ranks:
        engine.register(space)
    keys = chain("x", 6)
    ranks[0].save(keys)
    lease = ranks[0].lookup(keys).lease
    ranks[0].retrieve(keys, lease, 0, 6)
    ranks[0].end()
    for number, engine in enumerate(ranks):
        assert engine.release(lease).chunks == (6 if number == 3 else 0)
        for other in range(4):
            engine.save(chain(f"other{number}{other}", 8))
            world.check_claims()
        assert pinned(world) == (0 if number == 3 else 6)


def test_b13_death_frees_leases_and_keeps_chunks() -> None:
    world = World(config())
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    lease = a.lookup(keys, 1).lease
    a.retrieve(keys, lease, 0, 3)
    a.lookup(keys, 2)
    a.die()
    stats = world.core.stats()
    assert (stats["pinned_slots"], stats["leases"], stats["sessions"]) == (0, 0, 1)
    assert locks(world) == 0
    assert b.lookup(keys).ready == 6


def test_heartbeat_ends_what_is_not_alive_and_not_retrieved() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    for request in (1, 2, 3):
        lease = a.lookup(keys, request).lease
        if request == 3:
            a.retrieve(keys, lease, 0, 2)
    a.ask(m.Heartbeat(session=a.session, requests=struct.pack("<Q", 2)))
    assert locks(world) == 1
    assert pinned(world) == 2
    assert a.lookup(keys, 2).ready == 6
    bad = m.Heartbeat(session=a.session, requests=b"123")
    assert a.error(bad) is ErrorCode.COUNT_MISMATCH


def test_the_scheduler_releases_for_all_readers() -> None:
    world = World(config(extents=8, slots=16))
    ranks = [world.engine("a", rank) for rank in range(2)]
    for engine in ranks:
        engine.register(namespace(ranks=2))
    keys = chain("x", 5)
    for engine in ranks:
        engine.save(keys)
    lease = ranks[0].lookup(keys).lease
    ranks[0].retrieve(keys, lease, 0, 5)
    assert ranks[0].release(lease, everyone=True).chunks == 5
    assert pinned(world) == 0
    assert world.core.stats()["leases"] == 0


@pytest.mark.parametrize(("start", "count"), [(0, 7), (5, 2), (7, 1)])
def test_a_range_outside_the_lease_is_refused(start: int, count: int) -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    lease = a.lookup(keys).lease
    body = m.Retrieve(session=a.session, lease=lease, start=start, count=count)
    assert a.error(body) is ErrorCode.INVALID_ARGUMENT


def test_another_engine_cannot_use_or_end_a_lease() -> None:
    world = World(config())
    a, b = world.engine("a"), world.engine("b")
    a.register(namespace())
    b.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    lease = a.lookup(keys).lease
    assert b.error(m.Retrieve(session=b.session, lease=lease, start=0, count=1)) is (
        ErrorCode.UNKNOWN_LEASE
    )
    b.release(lease)
    b.end()
    a.retrieve(keys, lease, 0, 6)


def test_clear_empties_unretrieved_leases_and_spares_what_is_read() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    read, unread = a.lookup(keys, 1).lease, a.lookup(keys, 2).lease
    a.retrieve(keys, read, 0, 3)
    assert a.ask(m.Clear()).chunks == 6
    with pytest.raises(ReplyError, match="CLEARED"):
        a.retrieve(keys, unread, 0, 6)
    with pytest.raises(ReplyError, match="CLEARED"):
        a.retrieve(keys, read, 3, 3)
    for number in range(10):
        a.save(chain(f"other{number}", 6))
        world.check_claims()
    assert pinned(world) == 3
    a.release(read)
    a.end(1)
    a.end(2)
    assert pinned(world) == 0
    assert world.core.stats()["leases"] == 0


def test_clear_ends_asking_again_for_what_is_still_read() -> None:
    world = World(config())
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    lease = a.lookup(keys).lease
    a.retrieve(keys, lease, 0, 6)
    a.ask(m.Clear())
    with pytest.raises(ReplyError, match="CLEARED"):
        a.retrieve(keys, lease, 0, 6)
    world.check_claims()
    assert pinned(world) == 6
    a.release(lease)
    assert pinned(world) == 0


def test_window_groups_need_only_their_window() -> None:
    groups = (
        LayerGroup(layers=(0,), page_bytes=PAGE),
        LayerGroup(layers=(1,), page_bytes=PAGE, window_tokens=64),
    )
    world = World(config(extents=8, slots=32))
    a = world.engine("a")
    a.register(namespace(groups=groups))
    keys = chain("x", 10)
    assert a.save(keys, shard=0) == 10
    assert a.lookup(keys).ready == 0
    # Blocks 5 to 7 of the window group: depth 8 needs blocks 6 and 7, depth 9 needs block 8.
    body = a.store_body(keys, 5, 8, shard=1)
    assert a.ask(body).copied == 3
    assert a.commit(body.store, 3).published == 3
    found = a.lookup(keys)
    assert found.ready == 8
    slots = a.retrieve(keys, found.lease, 0, 8)
    assert np.flatnonzero(slots["extent"][:, 1]).tolist() == [5, 6, 7]


def test_a_rank_that_left_ends_retrieving_and_its_successor_gets_pins_of_its_own() -> None:
    world = World(config(extents=8, slots=16))
    ranks = [world.engine("a", rank) for rank in range(2)]
    for engine in ranks:
        engine.register(namespace(ranks=2))
    keys = chain("x", 6)
    for engine in ranks:
        engine.save(keys)
    lease = ranks[0].lookup(keys).lease
    ranks[0].retrieve(keys, lease, 0, 3)
    ranks[1].die()
    for start, count in ((0, 3), (3, 3)):
        body = m.Retrieve(session=ranks[0].session, lease=lease, start=start, count=count)
        assert ranks[0].error(body) is ErrorCode.UNAVAILABLE
    late = world.engine("a", 1)
    late.register(namespace(ranks=2))
    assert pinned(world) == 3
    ranks[0].retrieve(keys, lease, 0, 6)
    assert pinned(world) == 12
    late.release(lease)
    ranks[0].release(lease)
    assert pinned(world) == 0


def test_asking_again_after_giving_back_pins_again() -> None:
    world = World(config(extents=2, slots=8))
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 6)
    a.save(keys)
    lease = a.lookup(keys).lease
    a.retrieve(keys, lease, 0, 4)
    a.release(lease)
    assert pinned(world) == 0
    a.retrieve(keys, lease, 0, 5)
    a.end()
    assert pinned(world) == 5
    for number in range(8):
        a.save(chain(f"other{number}", 8))
        world.check_claims()


def test_window_shards_that_no_reader_needs_may_lie_where_one_has_not_mapped() -> None:
    world = World(config(extents=8, slots=4), auto_map=False)
    a = world.engine()
    groups = (
        LayerGroup(layers=(0,), page_bytes=PAGE),
        LayerGroup(layers=(1,), page_bytes=PAGE, window_tokens=64),
    )
    a.register(namespace(groups=groups))
    keys = chain("x", 8)
    a.save(keys, shard=0)
    a.save(keys, shard=1)
    first_of_window = next(
        number for number, one in world.extents.items() if one.geometry.shard == 1
    )
    a.to_map.remove(first_of_window)
    a.report()
    world.pump()
    found = a.lookup(keys)
    assert found.ready == 8
    slots = a.retrieve(keys, found.lease, 0, 8)
    assert slots["extent"][:, 1].tolist()[:4] == [0] * 4
    a.check_complete(0, slots)
    a.release(found.lease)
    a.to_map = [first_of_window]
    a.report()
    world.pump()
    slots = a.retrieve(keys, a.lookup(keys).lease, 0, 8)
    assert (slots["extent"] > 0).all()


def test_what_one_rank_gave_back_is_retrieved_again_as_the_other_still_reads_it() -> None:
    """A window shard that was published meanwhile is not among what the other rank has pinned."""
    world = World(config(extents=16, slots=16))
    groups = (
        LayerGroup(layers=(0,), page_bytes=PAGE),
        LayerGroup(layers=(1,), page_bytes=PAGE, window_tokens=64),
    )
    space = namespace(groups=groups, ranks=2)
    ranks = [world.engine("a", rank) for rank in range(2)]
    for engine in ranks:
        engine.register(space)
    keys = chain("x", 8)
    for engine in ranks:
        assert engine.save(keys, shard=space.shard(0, engine.rank)) == 8
        assert engine.save(keys, 6, shard=space.shard(1, engine.rank)) == 8
    found = ranks[0].lookup(keys)
    assert found.ready == 8
    first = ranks[0].retrieve(keys, found.lease, 0, 4)
    assert pinned(world) == 8
    ranks[0].release(found.lease)
    assert pinned(world) == 4
    for engine in ranks:
        assert engine.save(keys[:4], shard=space.shard(1, engine.rank)) == 4
    again = ranks[0].retrieve(keys, found.lease, 0, 4)
    assert (again == first).all()
    assert pinned(world) == 8, "it has pins of its own again"
    world.core.check_integrity()
    for engine in ranks:
        engine.release(found.lease)
    ranks[0].end()
    assert pinned(world) == 0
    world.core.check_integrity()


def refused(engine: Engine, keys: list[bytes], request: int) -> bool:
    body = m.Lookup(session=engine.session, request=request, start=0, keys=b"".join(keys))
    return engine.error(body) is ErrorCode.LIMIT_EXCEEDED


def test_what_one_engine_may_lease_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LIVE_REQUESTS", 2)
    world = World(config())
    a, b = world.engine("a"), world.engine("b")
    for engine in (a, b):
        engine.register(namespace())
    keys = chain("x", 2)
    a.save(keys)
    leases = [a.lookup(keys, request).lease for request in (1, 2)]
    assert refused(a, keys, 3)
    assert b.lookup(keys, 3).ready == 2
    for request in (1, 2):  # each request keeps what it retrieved under a former lease
        a.retrieve(keys, leases[request - 1], 0, 2)
        leases.append(a.lookup(keys, request).lease)
        a.retrieve(keys, leases[-1], 0, 2)
    assert refused(a, keys, 1)
    a.release(leases[0])
    assert a.lookup(keys, 1).ready == 2


def test_slots_that_leases_remember_are_bounded() -> None:
    world = World(config(max_leased_slots_per_instance=5))
    a = world.engine("a")
    a.register(namespace())
    keys = chain("x", 2)
    a.save(keys)
    leases = [a.lookup(keys, request).lease for request in (1, 2, 3)]
    for lease in leases[:2]:
        a.retrieve(keys, lease, 0, 2)
    body = m.Retrieve(session=a.session, lease=leases[2], start=0, count=2)
    assert a.error(body) is ErrorCode.LIMIT_EXCEEDED
    a.release(leases[0])
    a.retrieve(keys, leases[2], 0, 2)
