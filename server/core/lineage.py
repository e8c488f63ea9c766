"""Which of the records found in one namespace's extents hang together.

Purpose: from records as a killed server left them to chunks that an index may hold: sound ones of
this namespace, the newest of each chunk and shard, whose ancestors are all there. All in arrays,
since there may be millions. Must not know: indexes, slots, files. Runs in: the main thread before
the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.extents import RECORD_DTYPE, STATE_HELD, ExtentGeometry, checksums
from protocol.ids import ID_BYTES

ROOT, LOST = -1, -2
"""Parent of a chain's first chunk; a parent that is not there."""

MAX_GENERATION = 1 << 62
"""Higher ones are not ours: the next ones must fit the field, whatever was found."""

_BLOCK = 2048
_FIRST_BYTES = 256
_KEY = np.dtype((np.void, ID_BYTES))
_TAKEN = ("key", "parent", "generation", "stamp")

Ints = NDArray[np.int64]


@dataclass
class Rows:
    """Sound records of one namespace, as arrays of one length n.

    Attributes:
        file: int32[n], which of the extents the record lies in.
        local: int32[n], its slot within the extent.
        shard: int32[n].
        key: V16[n].
        parent: V16[n], zero bytes at a chain's start.
        generation: uint64[n].
        stamp: uint64[n], nanoseconds, of any clock.
    """

    file: NDArray[np.int32]
    local: NDArray[np.int32]
    shard: NDArray[np.int32]
    key: NDArray[np.void]
    parent: NDArray[np.void]
    generation: NDArray[np.uint64]
    stamp: NDArray[np.uint64]


def sound_rows(
    records: NDArray[Any], geometry: ExtentGeometry, file: int
) -> tuple[Rows, dict[str, int]]:
    """Reads an extent's records.

    Args:
        records: RECORD_DTYPE[num_slots], as in the file.
        geometry: from the file's header.
        file: number to note with each.

    Returns:
        What is sound and belongs here, and how many others there were, by reason.
    """
    places: list[Ints] = []
    parts: list[NDArray[Any]] = []
    torn = strange = 0
    for begin in range(0, len(records), _BLOCK):
        # One copy: what is checked is what is used, and stays in the processor's cache.
        block = np.array(records[begin : begin + _BLOCK])
        written = block["checksum"] != 0
        if not written.any():
            continue
        whole = written & (checksums(block) == block["checksum"])
        fits = whole & (block["state"] == STATE_HELD) & (block["shard"] == geometry.shard)
        fits &= block["namespace"] == np.void(geometry.fingerprint[:8])
        fits &= block["chunk_blocks"] == geometry.chunk_blocks
        fits &= block["payload_bytes"] == geometry.payload_bytes
        fits &= (block["generation"] > 0) & (block["generation"] < MAX_GENERATION)
        torn += int(np.count_nonzero(written) - np.count_nonzero(whole))
        strange += int(np.count_nonzero(whole) - np.count_nonzero(fits))
        places.append(begin + np.flatnonzero(fits))
        parts.append(block if fits.all() else block[fits])
    found = np.concatenate(parts) if parts else np.zeros(0, RECORD_DTYPE)
    rows = Rows(
        file=np.full(len(found), file, np.int32),
        local=np.concatenate([np.zeros(0, np.int64), *places]).astype(np.int32),
        shard=np.full(len(found), geometry.shard, np.int32),
        **{name: np.ascontiguousarray(found[name]) for name in _TAKEN},
    )
    return rows, {"torn": torn, "not of this extent": strange}


def newest_forgotten(records: NDArray[Any]) -> int:
    """The highest generation among voided records, which keep theirs.

    Args:
        records: RECORD_DTYPE[num_slots], as in the file.

    Returns:
        0 without any.
    """
    found = records["generation"][records["checksum"] == 0]
    return int(found[found < MAX_GENERATION].max(initial=0))


def joined(parts: list[Rows]) -> Rows:
    """Rows of all extents of a namespace, oldest generation first.

    Args:
        parts: at least one.
    """

    def whole(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(one, name) for one in parts])

    order = np.argsort(whole("generation"), kind="stable")
    # Field by field: three copies of all of them would be most of what a start needs of memory.
    return Rows(**{name: whole(name)[order] for name in Rows.__dataclass_fields__})


@dataclass
class Graph:
    """Chunks that some record names, as nodes 0 to k - 1.

    Attributes:
        rows: what it was made of, oldest generation first.
        node: int64[n], node of each row, or LOST where two records of a chunk disagree about its
            parent and this one is older.
        key: V16[k], key of each node.
        parent: int64[k], node, ROOT or LOST.
    """

    rows: Rows
    node: Ints
    key: NDArray[np.void]
    parent: Ints


def graph(rows: Rows) -> Graph:
    """Ties rows to chunks, and chunks to their parents.

    Args:
        rows: from ``joined``.
    """
    newest, tables = _newest(rows.key)
    is_newest = newest == np.arange(newest.size)
    number = np.cumsum(is_newest) - 1
    reps = np.flatnonzero(is_newest)
    at = _look_up(rows.parent[reps], tables)
    parent = np.where(at >= 0, number[np.maximum(at, 0)], LOST)
    words = _words(rows.parent)
    parent[~words[reps].any(axis=1)] = ROOT
    node = number[newest]
    agrees = (words == words[newest]).all(axis=1)
    node[~agrees] = LOST
    return Graph(rows, node, rows.key[reps], parent)


def _words(keys: NDArray[np.void]) -> NDArray[np.uint64]:
    return keys.view("<u8").reshape(-1, 2)


def by_first_byte(keys: NDArray[np.void]) -> tuple[Ints, list[bytes], list[int]]:
    """Sorts keys by their first byte, as the index keeps them.

    Args:
        keys: V16[n].

    Returns:
        The order; the keys as bytes, in that order; and where each byte's begin and end.
    """
    first = keys.view(np.uint8).reshape(-1, ID_BYTES)[:, 0]
    order = np.argsort(first, kind="stable")
    bounds = np.searchsorted(first[order], np.arange(_FIRST_BYTES + 1)).tolist()
    return order, keys[order].tolist(), bounds


def _newest(keys: NDArray[np.void]) -> tuple[Ints, list[dict[bytes, int]]]:
    """The last row of each row's key, and tables from keys to it.

    Many small tables, which a processor's cache holds while they are filled and read.
    """
    order, names, bounds = by_first_byte(keys)
    places = order.tolist()
    newest = order.copy()
    tables: list[dict[bytes, int]] = []
    for begin, end in pairwise(bounds):
        mine = names[begin:end]
        table = dict(zip(mine, places[begin:end], strict=True))
        if len(table) < len(mine):
            newest[begin:end] = list(map(table.__getitem__, mine))
        tables.append(table)
    result = np.empty_like(newest)
    result[order] = newest
    return result, tables


def _look_up(keys: NDArray[np.void], tables: list[dict[bytes, int]]) -> Ints:
    """The row of each key, or LOST."""
    order, names, bounds = by_first_byte(keys)
    found: list[int] = []
    for table, (begin, end) in zip(tables, pairwise(bounds), strict=True):
        found += map(table.get, names[begin:end], repeat(LOST))
    result = np.empty(order.size, np.int64)
    result[order] = found
    return result


@dataclass
class Survivors:
    """What may be held.

    Attributes:
        cells: int32[k, num_shards], row of each shard of each node, or ABSENT (-1); a node of
            which no row is left is not there.
        depth: int64[k], ordinal in its chain, -1 for a node that is not there.
        num_older: rows that a newer one of the same chunk and shard replaces.
        num_lost: rows whose ancestors are not all there.
    """

    cells: NDArray[np.int32]
    depth: Ints
    num_older: int
    num_lost: int


def survivors(found: Graph, usable: NDArray[np.bool_], full: tuple[bool, ...]) -> Survivors:
    """Leaves out what an index may not hold.

    Of a full-attention shard a chunk needs its parent's part, of a window shard its parent only.

    Args:
        found: all chunks.
        usable: bool[n], rows that count.
        full: for each shard, whether it belongs to a full-attention group.

    Returns:
        The rest.
    """
    num_nodes = len(found.parent)
    where = np.flatnonzero(usable & (found.node >= 0))
    cells = np.full((num_nodes, len(full)), -1, np.int32)
    # Ascending generations, so that of several the newest stays.
    cells[found.node[where], found.rows.shard[where]] = where
    num_cells = int(np.count_nonzero(cells >= 0))
    has_parent, above = found.parent >= 0, np.maximum(found.parent, 0)
    for shard, is_full in enumerate(full):
        if is_full:
            has = cells[:, shard] >= 0
            orphan = has & has_parent & ~has[above]
            if orphan.any():
                links = np.where(has & ~orphan, found.parent, LOST)
                cells[climb(links) < 0, shard] = -1
    is_there: NDArray[np.bool_] = cells.max(axis=1, initial=-1) >= 0
    is_orphan = has_parent & ~is_there[above]
    depth = climb(np.where(is_there & ~is_orphan, found.parent, LOST))
    cells[depth < 0] = -1
    left = int(np.count_nonzero(cells >= 0))
    lost = num_cells - left + int(np.count_nonzero(usable & (found.node < 0)))
    return Survivors(cells, depth, where.size - num_cells, lost)


def climb(parent: Ints) -> Ints:
    """How far each node is from the start of its chain, by doubling steps.

    Args:
        parent: int64[k], node, ROOT or LOST; may even form rings.

    Returns:
        int64[k], 0 for a chain's first node, -1 for a node that reaches no start.
    """
    num = len(parent)
    # Two more nodes, the root and nowhere, that lead to themselves in no steps.
    up = np.concatenate([np.where(parent >= 0, parent, num - 1 - parent), [num, num + 1]])
    steps = np.ones(num + 2, np.int64)
    steps[num:] = 0
    active = np.flatnonzero(up[:num] < num)
    for _ in range(num.bit_length() + 1):
        if not active.size:
            break
        via = up[active]
        further, onto = steps[via], up[via]
        steps[active] += further
        up[active] = onto
        active = active[onto < num]
    up[active] = num + 1
    depth: Ints = np.where(up[:num] == num, steps[:num] - 1, -1)
    return depth


def last_used(parent: Ints, depth: Ints, stamp: Ints) -> Ints:
    """When each node or anything that continues it was stored last.

    The first chunks of a chain are as old as the chain and as useful as its youngest chunk.

    Args:
        parent: int64[k], node, ROOT or LOST.
        depth: int64[k], from ``climb``.
        stamp: int64[k].

    Returns:
        int64[k]; as in ``stamp`` where the depth is -1.
    """
    latest: Ints = stamp.copy()
    active = np.flatnonzero((depth > 0) & (parent >= 0))
    up = parent.copy()
    while active.size:
        via = up[active]
        np.maximum.at(latest, via, latest[active])
        onto = up[via]
        up[active] = onto
        active = active[onto >= 0]
    return latest
