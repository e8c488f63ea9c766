"""The index of one namespace: a forest of chunks, prefix-closed per shard.

Purpose: find how much of a chain is held with a few probes. A node exists while one of its cells
(one per shard) names a slot or while it has children; a full-attention shard's cell is filled only
while its parent's is, so completeness is monotone along a chain. Must not know: leases, engines,
who evicts. Runs in: the loop thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES
from server.core.admission import MORE, Steps
from server.core.keytable import KeyTable
from server.core.slots import HELD, SlotTable

ROOT = -1
"""Parent of a chain's first chunk."""

ABSENT = -1
"""A cell without a slot, and a link that leads nowhere."""

FIRST_ROOM, SMALL_ROOM = 256, 8192
"""Nodes of a new index, and up to which it doubles, copying half a megabyte at most; then it gets
room for all that may come."""

_KEY_DTYPE = np.dtype((np.void, ID_BYTES))
_LINKS = (
    "parent",
    "first_child",
    "next",
    "previous",
    "depth",
    "locks",
    "life",
    "missing",
    "used",
    "uses",
    "account",
    "seen",
)


class ChunkIndex:
    """One namespace's nodes.

    Args:
        slots: the arena's slots.
        full_shards: for each shard, whether it belongs to a full-attention group.
        window_groups: the shards of each window group that has more than one.
        room: about how many nodes there may come to be. Once there are thousands, memory for so
            many is asked for at once: it costs nothing before it is used, and is not copied again.

    Attributes:
        num_shards: cells per node.
        full: the same as ``full_shards``.
        cells: int32[capacity, num_shards], slot numbers or ABSENT.
        cell_of: the same memory, flat.
        parent: memoryview of int32, node or ROOT.
        first_child: first child or ABSENT.
        next: next sibling or ABSENT.
        previous: previous sibling or ABSENT.
        depth: ordinal of the chunk in its chain.
        locks: reasons not to evict the node, besides pinned slots.
        life: counts how often the node's number was given up; tells a node from its successor.
        missing: full-attention shards not HELD.
        used: cells that name a slot.
        uses: how often a LOOKUP matched up to the node, as far as that is counted.
        account: for whose quota it counts, see ``server.core.accounts``.
        seen: when lower tiers were told that the chain up to the node is used, 0 for never.
        stamp: memoryview of int64, when the node was last used, in microseconds.
        flags: memoryview of uint8 for the eviction policy, zero for a new node.
        by_key: node of each key.
        slots: the arena's slots.
    """

    parent: memoryview[int]
    first_child: memoryview[int]
    next: memoryview[int]
    previous: memoryview[int]
    depth: memoryview[int]
    locks: memoryview[int]
    life: memoryview[int]
    missing: memoryview[int]
    used: memoryview[int]
    uses: memoryview[int]
    account: memoryview[int]
    seen: memoryview[int]

    def __init__(
        self,
        slots: SlotTable,
        full_shards: tuple[bool, ...],
        window_groups: tuple[tuple[int, ...], ...] = (),
        room: int = FIRST_ROOM,
    ) -> None:
        self.full = full_shards
        self._window_groups = window_groups
        self.num_shards = len(full_shards)
        self._num_full = sum(full_shards)
        self.slots = slots
        self._room = room
        self.by_key = KeyTable()
        self._unused: list[int] = []
        self._num_taken = 0
        self._capacity = 0
        self._columns: dict[str, NDArray[np.int32]] = {
            name: np.zeros(0, np.int32) for name in _LINKS
        }
        self._stamps: NDArray[np.int64] = np.zeros(0, np.int64)
        self._flags: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._keys: NDArray[np.void] = np.zeros(0, _KEY_DTYPE)
        self.cells: NDArray[np.int32] = np.zeros((0, self.num_shards), np.int32)
        self._grow(FIRST_ROOM)

    def __len__(self) -> int:
        """Nodes in the index."""
        return self.by_key.count

    def _grow(self, capacity: int) -> None:
        """Moves to larger arrays; the kernel fills in their pages when they are touched."""

        def moved(old: NDArray[Any], *shape: int) -> NDArray[Any]:
            new = np.zeros((capacity, *shape), old.dtype)
            new[: self._num_taken] = old[: self._num_taken]
            return new

        self._columns = {name: moved(old) for name, old in self._columns.items()}
        self._stamps = moved(self._stamps)
        self._flags = moved(self._flags)
        self._keys = moved(self._keys)
        self.cells = moved(self.cells, self.num_shards)
        self._capacity = capacity
        for name, column in self._columns.items():
            setattr(self, name, column.data)
        self.stamp = self._stamps.data
        self.flags = self._flags.data
        self.cell_of = self.cells.reshape(-1).data

    def _take(self, count: int) -> list[int]:
        """Numbers for new nodes: those given up last, then ones never used."""
        taken = self._unused[: -count - 1 : -1]
        del self._unused[len(self._unused) - len(taken) :]
        fresh = count - len(taken)
        if fresh:
            begin, end = self._num_taken, self._num_taken + fresh
            if end > self._capacity:
                room = self._room if self._capacity >= SMALL_ROOM else 0
                self._grow(max(2 * self._capacity, end, room))
            self.cells[begin:end] = ABSENT
            self._num_taken = end
            taken += range(begin, end)
        return taken

    def find(self, key: bytes) -> int:
        """The node of a key, or ABSENT."""
        return self.by_key.find(key)

    def find_all(self, keys: list[bytes]) -> list[int]:
        """The node of each key, or ABSENT."""
        return self.by_key.find_all(keys)

    def key(self, node: int) -> bytes:
        """The key of a node."""
        return bytes(self._keys[node])

    def keys_of(self, nodes: NDArray[np.int64]) -> NDArray[np.void]:
        """V16[n], the key of each node; also of nodes removed since nothing was added."""
        return self._keys[nodes]

    def parent_keys(self, nodes: NDArray[np.int64]) -> NDArray[np.void]:
        """V16[n], the key of each node's parent, zeros at a chain's start."""
        parents = self._columns["parent"][nodes]
        keys = self._keys[parents]
        keys[parents == ROOT] = np.void(bytes(ID_BYTES))
        return keys

    def lives(self, nodes: NDArray[np.int64]) -> NDArray[np.int32]:
        """int32[n], the life of each node."""
        return self._columns["life"][nodes]

    def uses_of(self, nodes: NDArray[np.int64]) -> NDArray[np.int32]:
        """int32[n], how often each node was used."""
        return self._columns["uses"][nodes]

    def accounts_of(self, nodes: NDArray[np.int64]) -> NDArray[np.int32]:
        """int32[n], for whose quota each node counts."""
        return self._columns["account"][nodes]

    def assign(self, nodes: NDArray[np.int64], accounts: NDArray[np.int32]) -> None:
        """Says for whose quota nodes count that were just loaded."""
        self._columns["account"][nodes] = accounts

    def add_chain(
        self, keys: list[bytes], parent: int, now_us: int, account: int = 0
    ) -> NDArray[np.int64]:
        """Adds nodes that continue each other; the caller fills a cell of each at once.

        Args:
            keys: not in the index, each once, at least one.
            parent: of the first, node or ROOT.
            now_us: first stamp.
            account: for whose quota they count.

        Returns:
            int64[n], the nodes in order.
        """
        count = len(keys)
        taken = self._take(count)
        nodes = np.array(taken, dtype=np.int64)
        column = self._columns
        column["parent"][nodes[1:]] = nodes[:-1]
        column["first_child"][nodes[:-1]] = nodes[1:]
        column["first_child"][nodes[-1]] = ABSENT
        for link in ("previous", "next"):
            column[link][nodes] = ABSENT
        for count_of in ("locks", "used", "uses", "seen"):
            column[count_of][nodes] = 0
        column["account"][nodes] = account
        column["missing"][nodes] = self._num_full
        depth = 0 if parent == ROOT else self.depth[parent] + 1
        column["depth"][nodes] = np.arange(depth, depth + count)
        self._stamps[nodes] = now_us
        self._flags[nodes] = 0
        self._keys[nodes] = np.frombuffer(b"".join(keys), _KEY_DTYPE)
        self.by_key.add_all(keys, taken)
        self._link(taken[0], parent)
        return nodes

    def _link(self, node: int, parent: int) -> None:
        self.parent[node] = parent
        if parent != ROOT:
            sibling = self.first_child[parent]
            self.next[node] = sibling
            if sibling != ABSENT:
                self.previous[sibling] = node
            self.first_child[parent] = node

    def publish(
        self, nodes: NDArray[np.int64], shard: int, now_us: int
    ) -> tuple[list[int], list[int]]:
        """Counts cells whose slots were just published.

        Args:
            nodes: int64[n], each once.
            shard: which cell of each.
            now_us: their new stamp.

        Returns:
            Those that are leaves, and those that still lack shards.
        """
        missing = self._columns["missing"]
        if self.full[shard]:
            missing[nodes] -= 1
        self._stamps[nodes] = now_us
        leaves = nodes[self._columns["first_child"][nodes] == ABSENT]
        if self._window_groups:
            return leaves.tolist(), [node for node in nodes.tolist() if self.lacks(node)]
        return leaves.tolist(), nodes[missing[nodes] > 0].tolist()

    def remove(self, node: int) -> int:
        """Removes a node that has neither cells nor children; returns its parent, or ROOT."""
        parent, previous, following = self.parent[node], self.previous[node], self.next[node]
        if previous != ABSENT:
            self.next[previous] = following
        elif parent != ROOT:
            self.first_child[parent] = following
        if following != ABSENT:
            self.previous[following] = previous
        self.by_key.remove(self.key(node))
        self.life[node] = (self.life[node] + 1) & 0x7FFFFFFF
        self._unused.append(node)
        return parent

    def only_line(self, leaf: int, stamp: int, limit: int) -> list[int]:
        """A leaf and the ancestors that become leaves one after the other when it goes.

        Args:
            leaf: where to begin.
            stamp: ancestors used after it end the line.
            limit: most nodes wanted.

        Returns:
            From the leaf up; none but the leaf may be locked.
        """
        line, node = [leaf], leaf
        while len(line) < limit:
            parent = self.parent[node]
            if parent == ROOT or self.stamp[parent] > stamp or self.locks[parent]:
                break
            if self.first_child[parent] != node or self.next[node] != ABSENT:
                break
            line.append(parent)
            node = parent
        return line

    def remove_line(self, line: list[int]) -> int:
        """Removes a line of nodes with all their cells.

        Args:
            line: from ``only_line``, or a part of it that begins with the leaf.

        Returns:
            The parent of the last, or ROOT.
        """
        nodes = np.array(line, dtype=np.int64)
        self.cells[nodes] = ABSENT
        self._columns["used"][nodes] = 0
        nodes = nodes[:-1]
        self.by_key.remove_all(self._keys[nodes].tobytes())
        self._columns["life"][nodes] = (self._columns["life"][nodes] + 1) & 0x7FFFFFFF
        self._unused += line[:-1]
        self.first_child[line[-1]] = ABSENT
        return self.remove(line[-1])

    def is_empty(self, node: int) -> bool:
        """Whether nothing justifies the node: no slot in any cell, no child."""
        return self.first_child[node] == ABSENT and self.used[node] == 0

    def cell(self, node: int, shard: int) -> int:
        """Slot in a cell, or ABSENT."""
        return self.cell_of[node * self.num_shards + shard]

    def holds(self, node: int, shard: int) -> bool:
        """Whether a shard of a node is published."""
        slot = self.cell_of[node * self.num_shards + shard]
        return slot != ABSENT and self.slots.state_of[slot] == HELD

    def lacks(self, node: int) -> bool:
        """Whether some rank has not published its part of a node.

        A window group that no rank has published lacks nothing: the chunk lies before its window.
        """
        if self.missing[node]:
            return True
        for shards in self._window_groups:
            held = sum(self.holds(node, shard) for shard in shards)
            if 0 < held < len(shards):
                return True
        return False

    def fill(self, nodes: NDArray[np.int64], shard: int, slots: NDArray[np.int64]) -> None:
        """Puts reserved slots into absent cells.

        Args:
            nodes: int64[n].
            shard: which cell of each.
            slots: int64[n].
        """
        self.cells[nodes, shard] = slots
        self._columns["used"][nodes] += 1

    def vacate(self, node: int, shard: int, was_held: bool) -> None:
        """Empties a cell."""
        self.cell_of[node * self.num_shards + shard] = ABSENT
        self.used[node] -= 1
        if was_held and self.full[shard]:
            self.missing[node] += 1

    def see(self, nodes: NDArray[np.int64], when: int) -> None:
        """Notes when lower tiers were told of nodes."""
        self._columns["seen"][nodes] = when

    def touch(self, node: int, now_us: int) -> None:
        """Notes that the chain up to a node was used."""
        self.stamp[node] = now_us

    def complete_prefix(self, keys: bytes, start: int) -> tuple[int, int]:
        """How many leading chunks of a range full attention has complete, by bisection.

        Without a full-attention group these are all that are known, whatever is held of them.

        Args:
            keys: 16 bytes per chunk, consecutive chunks of one chain.
            start: ordinal of the first.

        Returns:
            The count, and the deepest complete node (ABSENT when the count is 0).
        """
        tables, missing = self.by_key.tables, self.missing
        low, high, deepest = 0, len(keys) // ID_BYTES, ABSENT
        while low < high:
            middle = (low + high) // 2
            at = middle * ID_BYTES
            node = tables[keys[at]].get(keys[at : at + ID_BYTES], ABSENT)
            if node != ABSENT and missing[node] == 0:
                low, deepest = middle + 1, node
            else:
                high = middle
        return self._checked(low, deepest, start)

    def held_prefix(self, keys: bytes, start: int, shard: int) -> tuple[int, int]:
        """How many leading chunks of a range a full-attention shard holds, by bisection.

        Args:
            keys: 16 bytes per chunk, consecutive chunks of one chain.
            start: ordinal of the first.
            shard: which shard.

        Returns:
            The count, and the deepest such node (ABSENT when the count is 0).
        """
        low, high, deepest = 0, len(keys) // ID_BYTES, ABSENT
        while low < high:
            middle = (low + high) // 2
            node = self.find(keys[middle * ID_BYTES : middle * ID_BYTES + ID_BYTES])
            if node != ABSENT and self.holds(node, shard):
                low, deepest = middle + 1, node
            else:
                high = middle
        return self._checked(low, deepest, start)

    def _checked(self, count: int, deepest: int, start: int) -> tuple[int, int]:
        # Keys that are no chain, or begin elsewhere than said, are no hit.
        if count and self.depth[deepest] != start + count - 1:
            return 0, ABSENT
        return count, deepest

    def nodes(self) -> list[int]:
        """Every node, for checks and tests."""
        return [node for _, node in self.by_key.items()]

    def given_up(self) -> list[int]:
        """Numbers that no node has at present; with those of all nodes they are 0 to n - 1."""
        return list(self._unused)

    def bury(self) -> Steps:
        """Lets the memory of a replaced index go, in slices."""
        yield from self.by_key.empty()
        # Nobody reads an index that is not its owner's any more. Array by array, as giving the
        # pages of a large one back to the kernel takes a while.
        for name in _LINKS:
            self._columns[name] = np.zeros(0, np.int32)
            setattr(self, name, self._columns[name].data)
            yield MORE
        self._capacity = self._num_taken = 0
        self._unused.clear()
        self._stamps = np.zeros(0, np.int64)
        self.stamp = self._stamps.data
        yield MORE
        self._keys = np.zeros(0, _KEY_DTYPE)
        yield MORE
        self.cells = np.zeros((0, self.num_shards), np.int32)
        self.cell_of = self.cells.reshape(-1).data
