"""Rows of parts: each slot's place in its extent, its chunk and the one before."""

from __future__ import annotations

import numpy as np

from server.core.tiers.rows import rows
from tests.server.core.world import World, chain, config, namespace


def test_rows_name_each_slots_place() -> None:
    world = World(config(extents=4, slots=3))
    a = world.engine()
    a.register(namespace())
    keys = chain("x", 7)
    a.save(keys)
    state = world.core._state
    (owner,) = state.roster.owners.values()
    nodes = np.array(owner.index.find_all(keys), np.int64)
    slots = owner.index.cells[nodes][:, 0].astype(np.int64)
    out = rows(state.arena, owner.index.keys_of(nodes), owner.index.parent_keys(nodes), slots, 3)
    assert [bytes(key) for key in out["key"]] == keys
    assert [bytes(key) for key in out["parent"]] == [bytes(16), *keys[:-1]]
    assert set(out["heat"].tolist()) == {3}
    assert len(set(out["extent"].tolist())) > 1
    for row, slot in zip(out, slots.tolist(), strict=True):
        geometry = world.extents[int(row["extent"])].geometry
        local = int(state.slots.local[slot])
        assert int(row["offset"]) == geometry.data_offset_bytes + local * geometry.slot_bytes
        assert (row["length"], row["room"]) == (geometry.payload_bytes, geometry.slot_bytes)
        assert row["shard"] == 0
