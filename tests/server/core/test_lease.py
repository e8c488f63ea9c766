"""One lease: whether what it matched is still there, and how it is sliced."""

from __future__ import annotations

from server.core.lease import PIN_SLOTS, Lease, slice_chunks
from tests.server.core.world import World, chain, config, namespace


def leased(ranks: int = 1) -> tuple[World, Lease]:
    world = World(config(extents=2 * ranks))
    space = namespace(ranks=ranks)
    engines = [world.engine("a", rank) for rank in range(ranks)]
    keys = chain("x", 3)
    for engine in engines:
        engine.register(space)
    for engine in engines:
        engine.save(keys)
    assert engines[0].lookup(keys).ready == 3
    (lease,) = world.core._state.leases.by_id.values()
    return world, lease


def test_it_lives_while_its_deepest_chunk_and_its_index_do() -> None:
    world, lease = leased()
    assert lease.node_lives
    assert (lease.start, lease.ready, lease.is_open) == (0, 3, True)
    world.core._state.roster.renew_index(lease.owner)
    assert not lease.node_lives


def test_a_slice_has_so_many_slots_whatever_the_shards() -> None:
    assert slice_chunks(leased()[1]) == PIN_SLOTS
    assert slice_chunks(leased(ranks=3)[1]) == PIN_SLOTS // 3
