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


@settings(max_examples=25)
@given(
    held=st.sets(st.integers(0, 11)),
    window=st.integers(1, 5 * BLOCK),
    full=st.integers(0, 12),
    start=st.integers(0, 3),
)
def test_the_offer_is_the_largest_depth_whose_windows_are_held(
    held: set[int], window: int, full: int, start: int
) -> None:
    groups = (
        LayerGroup(layers=(0,), page_bytes=PAGE),
        LayerGroup(layers=(1,), page_bytes=PAGE, window_tokens=window),
    )
    world = World(config(extents=8, slots=16), check=False)
    a = world.engine()
    a.register(namespace(groups=groups))
    keys = chain("x", 12)
    if full:
        a.save(keys[:full], shard=0)
    for block in sorted(held):
        if block < full:
            body = a.store_body(keys, block, block + 1, shard=1)
            if a.ask(body).copied:
                a.commit(body.store, 1)
    held = {block for block in held if block < full}
    best = 0
    for depth in range(start + 1, full + 1):
        reach = [b for b in range(start, depth) if (b + 1) * BLOCK > depth * BLOCK - window]
        if all(block in held for block in reach):
            best = depth - start
    found = a.lookup(keys, start=start)
    assert found.ready == best
    if best:
        slots = a.retrieve(keys, found.lease, start, best)
        assert (slots["extent"][:, 0] > 0).all()
    world.core.check_integrity()


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

    owner.index._by_key = Counting(owner.index._by_key)
    assert a.lookup(keys).ready == 4096
    assert Counting.probes <= 13
    assert len(keys[0]) == ID_BYTES
