"""Fills an index with many nodes at once, at the start of a server.

Purpose: what ``ChunkIndex`` builds node by node as chunks come, here in a few array operations for
millions of them; the same invariants hold afterwards. A part of the index, in a file of its own.
Must not know: records, extents. Runs in: the main thread before the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.core.index import ABSENT, ROOT, ChunkIndex
from server.core.lineage import Ints, by_first_byte


@dataclass
class Nodes:
    """Nodes to load, as arrays of one length m.

    Attributes:
        key: V16[m], each once, none in the index.
        parent: int64[m], place of the parent among them, or ROOT.
        depth: int64[m], ordinal in the chain.
        cells: int32[m, num_shards], slots that are HELD, or ABSENT; prefix-closed for each
            full-attention shard.
        stamp_us: int64[m], when last used.
    """

    key: NDArray[np.void]
    parent: Ints
    depth: Ints
    cells: NDArray[np.int32]
    stamp_us: Ints


@dataclass
class Loaded:
    """Where they are now.

    Attributes:
        number: int64[m], node of each.
        is_leaf: bool[m].
        lacks: bool[m], whether some rank has not published its part.
    """

    number: Ints
    is_leaf: NDArray[np.bool_]
    lacks: NDArray[np.bool_]


def load(index: ChunkIndex, nodes: Nodes) -> Loaded:
    """Adds nodes; the slots learn theirs.

    Args:
        index: an empty one.
        nodes: what to add.
    """
    count = len(nodes.key)
    number = np.array(index._take(count), dtype=np.int64)
    column = index._columns
    named = nodes.cells != ABSENT
    for name in ("first_child", "next", "previous"):
        column[name][number] = ABSENT
    column["parent"][number] = np.where(nodes.parent == ROOT, ROOT, number[nodes.parent])
    column["depth"][number] = nodes.depth
    column["locks"][number] = 0
    column["uses"][number] = 0
    column["account"][number] = 0
    column["used"][number] = named.sum(axis=1)
    full = np.array(index.full, dtype=np.bool_)
    column["missing"][number] = (~named[:, full]).sum(axis=1)
    index.cells[number] = nodes.cells
    index._stamps[number] = nodes.stamp_us
    index._flags[number] = 0
    index._keys[number] = nodes.key
    _enter(index, nodes.key, number)
    _tie(index, number, nodes.parent)
    where = np.nonzero(named)
    index.slots.node[nodes.cells[where]] = number[where[0]]
    lacks = column["missing"][number] > 0
    for shards in index._window_groups:
        held = named[:, list(shards)].sum(axis=1)
        lacks |= (held > 0) & (held < len(shards))
    return Loaded(number, column["first_child"][number] == ABSENT, lacks)


def _enter(index: ChunkIndex, keys: NDArray[np.void], number: Ints) -> None:
    order, names, bounds = by_first_byte(keys)
    numbers = number[order].tolist()
    table = index.by_key
    for byte, begin in enumerate(bounds[:-1]):
        end = bounds[byte + 1]
        table.tables[byte].update(zip(names[begin:end], numbers[begin:end], strict=True))
    table.count += len(names)


def _tie(index: ChunkIndex, number: Ints, parent: Ints) -> None:
    """Links the children of each node; chains' first chunks have no siblings."""
    column = index._columns
    order = np.argsort(parent, kind="stable")
    order = order[parent[order] != ROOT]
    if not order.size:
        return
    above = parent[order]
    is_first = np.ones(order.size, np.bool_)
    is_first[1:] = above[1:] != above[:-1]
    column["first_child"][number[above[is_first]]] = number[order[is_first]]
    later = np.flatnonzero(~is_first)
    column["previous"][number[order[later]]] = number[order[later - 1]]
    column["next"][number[order[later - 1]]] = number[order[later]]
