"""An index that is filled at once is like one that grew, whatever was in it before."""

from __future__ import annotations

import random

import numpy as np
import pytest

from server.core.index import ABSENT, ROOT, ChunkIndex
from server.core.indexcheck import check_index
from server.core.indexload import Nodes, load
from server.core.slots import HELD, SlotTable


@pytest.mark.parametrize("seed", range(12))
def test_any_forest_is_loaded_as_the_index_would_have_built_it(seed: int) -> None:
    rng = random.Random(seed)
    num, num_shards = rng.choice([1, 2, 60, 700]), rng.randint(1, 4)
    full = tuple(rng.random() < 0.6 for _ in range(num_shards))
    windows = tuple(shard for shard in range(num_shards) if not full[shard])
    slots = SlotTable()
    base = slots.add_extent(1, num * num_shards)
    index = ChunkIndex(slots, full, (windows,) if len(windows) > 1 else ())
    parent = [rng.randint(ROOT, at - 1) for at in range(num)]
    depth: list[int] = []
    cells = np.full((num, num_shards), ABSENT, np.int32)
    for at, above in enumerate(parent):
        depth.append(0 if above == ROOT else depth[above] + 1)
        for shard in range(num_shards):
            has = above == ROOT or not full[shard] or cells[above, shard] != ABSENT
            if has and (rng.random() < 0.8 or not shard):
                cells[at, shard] = base + at * num_shards + shard
        if (cells[at] == ABSENT).all():
            cells[at, 0] = base + at * num_shards
    # Numbers need not be in the order of the chains.
    order = np.array(rng.sample(range(num), num))
    place = np.argsort(order)
    keys = np.frombuffer(rng.randbytes(16 * num), "V16")
    slots.state[cells[cells != ABSENT]] = HELD
    nodes = Nodes(
        key=keys[order],
        parent=np.array([ROOT if above == ROOT else place[above] for above in parent])[order],
        depth=np.array(depth)[order],
        cells=cells[order],
        stamp_us=np.arange(num) + 5,
    )
    loaded = load(index, nodes)
    check_index(index)
    assert len(index) == num
    assert sorted(loaded.number.tolist()) == sorted(index.nodes())
    for at in range(num):
        node = index.find(bytes(keys[order[at]]))
        assert node == loaded.number[at]
        assert index.depth[node] == depth[order[at]]
        assert index.stamp[node] == at + 5
        assert loaded.lacks[at] == index.lacks(node)
        assert loaded.is_leaf[at] == (index.first_child[node] == ABSENT)
    # It goes on growing and shrinking like any other.
    added = index.add_chain([b"n" * 16, b"m" * 16], int(loaded.number[0]), 9)
    spare = slots.add_extent(2, 2)
    for shard in range(num_shards):
        if not full[shard] or cells[order[0], shard] != ABSENT:
            index.fill(added, shard, np.array([spare, spare + 1]))
            slots.node[spare : spare + 2] = added
            break
    else:
        return
    check_index(index)
