"""Which nodes of an index are complete: what readers of the event stream are told of.

Purpose: the same for one node, for many, and for a page of all; and which of those just published
became so. A part of the index, in a file of its own. Must not know: events, readers. Runs in: the
loop thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from server.core.index import ABSENT, ChunkIndex
from server.core.slots import HELD


def is_complete(index: ChunkIndex, node: int) -> bool:
    """Whether full attention has all of a node; without it, whether anybody published some."""
    if index._num_full:
        return index.missing[node] == 0
    return any(index.holds(node, shard) for shard in range(index.num_shards))


def complete_of(index: ChunkIndex, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[n], ``is_complete`` of each; False for a number that no node has."""
    if index._num_full:
        # A node that went may have any count of missing shards, but names no slot.
        columns = index._columns
        found: NDArray[np.bool_] = (columns["missing"][nodes] == 0) & (columns["used"][nodes] > 0)
        return found
    return _num_held(index, nodes) > 0


def became_complete(
    index: ChunkIndex, nodes: NDArray[np.int64], shard: int, num_lacking: int
) -> list[tuple[int, int]]:
    """Which nodes are complete by the publishing of one shard, and were not before.

    Args:
        index: whose.
        nodes: int64[n], just published, consecutive in their chain.
        shard: of which.
        num_lacking: how many of them lack anything, as ``ChunkIndex.publish`` said.

    Returns:
        Runs of them: place of the first, and of the one after the last.
    """
    if index.full[shard]:
        # None is complete before the one ahead of it is.
        count = nodes.size - num_lacking
        if index._window_groups:  # of which something may be lacking as well
            count = int(np.count_nonzero(index._columns["missing"][nodes] == 0))
        return [(0, count)] if count else []
    if index._num_full:
        return []
    fresh = _num_held(index, nodes) == 1
    edges = np.flatnonzero(np.diff(fresh, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def complete_nodes(
    index: ChunkIndex, begin: int, most_looked: int, most: int
) -> tuple[NDArray[np.int64], int | None]:
    """Some of the complete nodes, by number.

    Args:
        index: whose.
        begin: first number that is looked at.
        most_looked: numbers looked at; without full attention, where each of them is as many looks
            as there are shards, looks.
        most: nodes wanted.

    Returns:
        int64[n], and the first number that was not looked at; None when all were.
    """
    if not index._num_full:
        most_looked = max(1, most_looked // index.num_shards)
    end = min(begin + most_looked, index._num_taken)
    numbers = np.arange(min(begin, end), end, dtype=np.int64)
    found = numbers[complete_of(index, numbers)]
    if found.size > most:
        return found[:most], int(found[most])
    return found, end if end < index._num_taken else None


def _num_held(index: ChunkIndex, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    cells = index.cells[nodes]
    held: NDArray[np.int64] = ((cells != ABSENT) & (index.slots.state[cells] == HELD)).sum(axis=1)
    return held
