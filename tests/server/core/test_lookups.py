"""How much is offered: bisection, windows, and extents that a reader lacks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import messages as m
from protocol.errors import ReplyError
from protocol.ids import ID_BYTES
from protocol.namespace import LayerGroup
from tests.server.core.world import PAGE, SECOND, World, chain, config, namespace

BLOCK = 32


WINDOWS = st.one_of(st.just(0), st.integers(1, 5 * BLOCK))


@settings(max_examples=60, deadline=None)
@given(
    windows=st.lists(st.tuples(WINDOWS, st.booleans()), min_size=1, max_size=3),
    ranks=st.integers(1, 2),
    saves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 11), st.integers(1, 12))),
    start=st.integers(0, 3),
)
def test_the_offer_is_the_largest_depth_whose_windows_are_held(
    windows: list[tuple[int, bool]],
    ranks: int,
    saves: list[tuple[int, int, int]],
    start: int,
) -> None:
    """Any mix of groups, ranks and replication; any holes that a window may leave."""
    groups = tuple(
        LayerGroup(layers=(n,), page_bytes=PAGE, window_tokens=window, replicated=replicated)
        for n, (window, replicated) in enumerate(windows)
    )
    world = World(config(extents=16, slots=16), check=False)
    space = namespace(groups=groups, ranks=ranks)
    engines = [world.engine("a", rank) for rank in range(ranks)]
    for engine in engines:
        engine.register(space)
    keys = chain("x", 12)
    held: list[set[int]] = [set() for _ in range(space.num_shards)]
    for which, first, count in saves:
        shard = which % space.num_shards
        rank = next(r for r in range(ranks) if shard in space.shards_of_rank(r))
        engine = engines[rank]
        body = engine.store_body(keys, first, min(12, first + count), shard)
        reply: m.StoreReply = engine.ask(body)
        done = reply.held
        if reply.copied:
            done += engine.commit(body.store, reply.copied).published
        held[shard] |= set(range(first, first + done))

    def is_complete(depth: int, begin: int) -> bool:
        for shard in range(space.num_shards):
            window = windows[space.group_of(shard)][0]
            # What lies before the range asked for is the engine's own, in windows too.
            reach = range(begin, depth) if window else range(depth)
            needed = {b for b in reach if not window or (b + 1) * BLOCK > depth * BLOCK - window}
            if not needed <= held[shard]:
                return False
        return True

    best = max((d - start for d in range(start + 1, 13) if is_complete(d, start)), default=0)
    whole = max((d for d in range(1, 13) if is_complete(d, 0)), default=0)
    (owner,) = world.core._state.roster.owners.values()
    blob = b"".join(keys)
    assert engines[0].ask(m.Inspect(fingerprint=owner.fingerprint, keys=blob)).chunks == whole
    pinned = m.Pin(fingerprint=owner.fingerprint, keys=blob, ttl_s=60)
    assert engines[0].ask(pinned).chunks == whole
    world.core.check_integrity()
    found = engines[0].lookup(keys, start=start)
    assert found.ready == best
    if best:
        slots = engines[0].retrieve(keys, found.lease, start, best)
        engines[0].check_complete(start, slots)
        for engine in engines:  # a pin for each reader, of replicated shards too
            world.core.check_integrity()
            assert world.core.stats()["leases"] == 1
            engine.release(found.lease)
    assert world.core.stats()["pinned_slots"] == 0
    world.core.check_integrity()


def test_chunks_of_windows_alone_that_nobody_holds_are_no_hit() -> None:
    """Chunk nodes stay as long as later ones need them; that is no content."""
    world = World(config(extents=8, slots=16))
    a = world.engine()
    groups = (LayerGroup(layers=(0,), page_bytes=PAGE, window_tokens=2 * BLOCK),)
    a.register(namespace(groups=groups))
    keys = chain("x", 6)
    a.store(keys)  # reserved and copied, never committed
    assert a.lookup(keys).ready == 0
    (owner,) = world.core._state.roster.owners.values()
    asked = m.Inspect(fingerprint=owner.fingerprint, keys=b"".join(keys))
    assert a.ask(asked).chunks == 0
    assert a.ask(m.Pin(fingerprint=owner.fingerprint, keys=keys[0], ttl_s=9)).chunks == 0
    a.commit(a.last_store, 4)
    assert a.lookup(keys).ready == 4
    assert a.ask(asked).chunks == 4


def test_a_walk_stops_where_no_window_reaches() -> None:
    world = World(config(extents=8, slots=2000), check=False)
    a = world.engine(pages=3000)
    groups = (
        LayerGroup(layers=(0,), page_bytes=PAGE),
        LayerGroup(layers=(1,), page_bytes=PAGE, window_tokens=4 * BLOCK),
    )
    a.register(namespace(groups=groups))
    keys = chain("x", 3000)
    a.save(keys, shard=0)
    a.save(keys, 2900, shard=1)
    session = world.core._state.roster.sessions[a.session]  # type: ignore[index]
    found: list[int] = []
    steps = world.core._state.lookups.slow(
        session, b"".join(keys), 0, lambda match: found.append(match.count)
    )
    assert len(list(steps)) == 1
    assert found == [3000]


@settings(max_examples=20)
@given(mapped=st.sets(st.integers(0, 4)), length=st.integers(1, 20))
def test_the_offer_ends_where_an_extent_is_not_mapped(mapped: set[int], length: int) -> None:
    world = World(config(extents=8, slots=4), auto_map=False, check=False)
    a = world.engine()
    a.register(namespace())
    keys = chain("x", length)
    a.save(keys)
    wanted = sorted(world.extents)
    a.to_map = [extent for number, extent in enumerate(wanted) if number in mapped]
    a.report()
    world.pump()
    ready = 0
    while ready < length and ready // 4 in mapped:
        ready += 1
    assert a.lookup(keys).ready == ready
    world.core.check_integrity()


def test_a_long_lookup_is_sliced_and_survives_what_happens_between() -> None:
    world = World(config(extents=3, slots=2000), auto_map=False, check=False)
    a = world.engine(pages=3000)
    a.register(namespace())
    a.report()
    world.pump()
    keys = chain("x", 3000)
    a.save(keys)
    body = m.Lookup(session=a.session, request=1, start=0, keys=b"".join(keys))
    seq = a.send(body)
    assert world.core.take_effects() == []
    world.core.check_integrity()
    clear = a.send(m.Clear())
    world.pump()
    assert a.answer(seq).ready == 0
    assert a.answer(clear).chunks == 3000
    assert world.core.stats()["leases"] == 0
    world.core.check_integrity()


def test_a_rank_that_leaves_amid_a_long_lookup_leaves_no_hit() -> None:
    world = World(config(extents=8, slots=2000), auto_map=False, check=False)
    ranks = [world.engine("a", rank, pages=3000) for rank in range(2)]
    for engine in ranks:
        engine.register(namespace(ranks=2))
        engine.report()
    world.pump()
    keys = chain("x", 3000)
    for engine in ranks:
        engine.save(keys)
    session = world.core._state.roster.sessions[ranks[0].session]  # type: ignore[index]
    found: list[int] = []
    for is_left in (False, True):  # the extents of what is behind are not mapped
        steps = world.core._state.lookups.slow(
            session, b"".join(keys), 0, lambda match: found.append(match.count)
        )
        next(steps)
        if is_left:
            ranks[1].die()
        assert len(list(steps)) > 0
    assert 0 < found[0] < 3000
    assert found[1] == 0
    world.core.check_integrity()


def test_a_long_lookup_has_a_deadline() -> None:
    world = World(config(extents=3, slots=2000), auto_map=False, check=False)
    a = world.engine(pages=3000)
    a.register(namespace())
    a.report()
    world.pump()
    keys = chain("x", 3000)
    a.save(keys)
    body = m.Lookup(session=a.session, request=1, start=0, keys=b"".join(keys))
    seq = a.send(body, timeout_ns=SECOND)
    world.step(2 * SECOND)
    world.pump()
    with pytest.raises(ReplyError, match="DEADLINE_EXCEEDED"):
        a.answer(seq)
    world.core.check_integrity()


def test_query_prefetch_status_is_final_at_once() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    keys = chain("x", 4)
    a.save(keys)
    found = a.lookup(keys, request=7)
    asked = m.QueryPrefetchStatus(session=a.session, request=7, wait_ms=60_000)
    assert a.ask(asked) == found
    a.end(7)
    assert a.ask(asked) == m.LookupReply(lease=b"", ready=0)


def test_bisection_probes_few_keys_of_many() -> None:
    world = World(config(extents=2, slots=4096), check=False)
    a = world.engine(pages=4096)
    a.register(namespace())
    keys = chain("x", 4096)
    a.save(keys)
    (owner,) = world.core._state.roster.owners.values()

    class Counting(dict):  # type: ignore[type-arg]
        probes = 0

        def get(self, key: object, default: object = None) -> object:
            Counting.probes += 1
            return dict.get(self, key, default)

    tables = owner.index.by_key.tables
    tables[:] = [Counting(table) for table in tables]
    assert a.lookup(keys).ready == 4096
    assert Counting.probes <= 13
    assert len(keys[0]) == ID_BYTES
