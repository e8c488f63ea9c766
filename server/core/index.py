"""The index of one namespace: a forest of chunks, prefix-closed per shard.

Purpose: find how much of a chain is held with a few probes. A node exists while one of its cells
(one per shard) names a slot or while it has children; a full-attention shard's cell is filled only
while its parent's is, so completeness is monotone along a chain. Must not know: leases, engines,
who evicts. Runs in: the loop thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES
from server.core.admission import MORE, WALK_BLOCKS, Steps
from server.core.integrity import require
from server.core.slots import HELD, SlotTable

ROOT = -1
"""Parent of a chain's first chunk."""

ABSENT = -1
"""A cell without a slot, and a link that leads nowhere."""

_FIRST_CAPACITY = 256
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
)


class ChunkIndex:
    """One namespace's nodes.

    Args:
        slots: the arena's slots.
        full_shards: for each shard, whether it belongs to a full-attention group.
        window_groups: the shards of each window group that has more than one.

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
        stamp: memoryview of int64, when the node was last used, in microseconds.
        flags: bytearray for the eviction policy, zero for a new node.
        keys: key of each node.
    """

    def __init__(
        self,
        slots: SlotTable,
        full_shards: tuple[bool, ...],
        window_groups: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self.full = full_shards
        self._window_groups = window_groups
        self.num_shards = len(full_shards)
        self._num_full = sum(full_shards)
        self._slots = slots
        self._by_key: dict[bytes, int] = {}
        self._unused: list[int] = []
        self._columns: dict[str, NDArray[np.int32]] = {
            name: np.zeros(0, np.int32) for name in _LINKS
        }
        self._stamps: NDArray[np.int64] = np.zeros(0, np.int64)
        self.cells: NDArray[np.int32] = np.zeros((0, self.num_shards), np.int32)
        self.flags = bytearray()
        self.keys: list[bytes] = []
        self._grow(_FIRST_CAPACITY)

    def __len__(self) -> int:
        """Nodes in the index."""
        return len(self._by_key)

    def _grow(self, capacity: int) -> None:
        old_capacity = len(self.keys)
        for name, old in self._columns.items():
            new = np.zeros(capacity, np.int32)
            new[:old_capacity] = old
            self._columns[name] = new
        stamps = np.zeros(capacity, np.int64)
        stamps[:old_capacity] = self._stamps
        self._stamps = stamps
        cells = np.full((capacity, self.num_shards), ABSENT, np.int32)
        cells[:old_capacity] = self.cells
        self.cells = cells
        self.flags.extend(bytes(capacity - old_capacity))
        self.keys.extend([b""] * (capacity - old_capacity))
        self._unused.extend(range(capacity - 1, old_capacity - 1, -1))
        self.parent = self._columns["parent"].data
        self.first_child = self._columns["first_child"].data
        self.next = self._columns["next"].data
        self.previous = self._columns["previous"].data
        self.depth = self._columns["depth"].data
        self.locks = self._columns["locks"].data
        self.life = self._columns["life"].data
        self.missing = self._columns["missing"].data
        self.used = self._columns["used"].data
        self.stamp = self._stamps.data
        self.cell_of = cells.reshape(-1).data

    def find(self, key: bytes) -> int:
        """The node of a key, or ABSENT."""
        return self._by_key.get(key, ABSENT)

    def find_all(self, keys: list[bytes]) -> list[int]:
        """The node of each key, or ABSENT."""
        get = self._by_key.get
        return [get(key, ABSENT) for key in keys]

    def add_chain(self, keys: list[bytes], parent: int, now_us: int) -> NDArray[np.int64]:
        """Adds nodes that continue each other; the caller fills a cell of each at once.

        Args:
            keys: not in the index, each once, at least one.
            parent: of the first, node or ROOT.
            now_us: first stamp.

        Returns:
            int64[n], the nodes in order.
        """
        count = len(keys)
        while len(self._unused) < count:
            self._grow(2 * len(self.keys))
        taken = self._unused[: -count - 1 : -1]
        del self._unused[-count:]
        nodes = np.array(taken, dtype=np.int64)
        column = self._columns
        column["parent"][nodes[1:]] = nodes[:-1]
        column["first_child"][nodes[:-1]] = nodes[1:]
        column["first_child"][nodes[-1]] = ABSENT
        column["previous"][nodes] = ABSENT
        column["next"][nodes] = ABSENT
        column["locks"][nodes] = 0
        column["used"][nodes] = 0
        column["missing"][nodes] = self._num_full
        depth = 0 if parent == ROOT else self.depth[parent] + 1
        column["depth"][nodes] = np.arange(depth, depth + count)
        self._stamps[nodes] = now_us
        flags, by_key, names = self.flags, self._by_key, self.keys
        for key, node in zip(keys, taken, strict=True):
            flags[node] = 0
            names[node] = key
            by_key[key] = node
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
        """Removes a node that has neither cells nor children.

        Args:
            node: which.

        Returns:
            Its parent, or ROOT.
        """
        parent, previous, following = self.parent[node], self.previous[node], self.next[node]
        if previous != ABSENT:
            self.next[previous] = following
        elif parent != ROOT:
            self.first_child[parent] = following
        if following != ABSENT:
            self.previous[following] = previous
        del self._by_key[self.keys[node]]
        self.keys[node] = b""
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
        by_key, keys = self._by_key, self.keys
        for node in line[:-1]:
            del by_key[keys[node]]
            keys[node] = b""
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
        return slot != ABSENT and self._slots.state_of[slot] == HELD

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
        by_key, missing = self._by_key, self.missing
        low, high, deepest = 0, len(keys) // ID_BYTES, ABSENT
        while low < high:
            middle = (low + high) // 2
            node = by_key.get(keys[middle * ID_BYTES : middle * ID_BYTES + ID_BYTES], ABSENT)
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
        return list(self._by_key.values())

    def bury(self) -> Steps:
        """Lets the memory of a replaced index go, in slices."""
        while self._by_key:
            for _ in range(min(WALK_BLOCKS, len(self._by_key))):
                self._by_key.popitem()
            yield MORE
        while self.keys:
            del self.keys[-WALK_BLOCKS:]
            yield MORE

    def check(self) -> set[int]:
        """Recomputes the structure.

        Returns:
            The nodes in the index.

        Raises:
            IntegrityError: names what is wrong.
        """
        nodes = set(self._by_key.values())
        require(len(nodes) == len(self._by_key), "a node has one key")
        require(len(nodes) + len(self._unused) == len(self.keys), "a node is used or unused")
        require(nodes.isdisjoint(self._unused), "an unused node is in no index")
        children: dict[int, set[int]] = {}
        for key, node in self._by_key.items():
            require(self.keys[node] == key, "a node knows its key", node)
            children.setdefault(self.parent[node], set()).add(node)
        for node in nodes:
            self._check_node(node, nodes, children.get(node, set()))
        return nodes

    def _check_node(self, node: int, nodes: set[int], children: set[int]) -> None:
        parent = self.parent[node]
        require(parent == ROOT or parent in nodes, "a parent is in the index", node, parent)
        depth = 0 if parent == ROOT else self.depth[parent] + 1
        require(self.depth[node] == depth, "depth follows the parent", node)
        linked, before, child = set(), ABSENT, self.first_child[node]
        while child != ABSENT:
            require(self.previous[child] == before, "siblings are linked both ways", child)
            require(child not in linked, "siblings form no ring", child)
            linked.add(child)
            before, child = child, self.next[child]
        require(linked == children, "children are linked", node, linked, children)
        used = sum(1 for shard in range(self.num_shards) if self.cell(node, shard) != ABSENT)
        require(self.used[node] == used, "used cells are counted", node, used)
        require(not self.is_empty(node), "a node has a slot or a child", node)
        require(self.locks[node] >= 0, "locks are not negative", node)
        held = [self.holds(node, shard) for shard in range(self.num_shards)]
        missing = sum(1 for full, has in zip(self.full, held, strict=True) if full and not has)
        require(self.missing[node] == missing, "missing shards are counted", node, missing)
        for shard in range(self.num_shards):
            slot = self.cell(node, shard)
            if slot != ABSENT:
                require(self._slots.node_of[slot] == node, "a slot knows its node", slot, node)
            if self.full[shard] and parent != ROOT and slot != ABSENT:
                require(
                    self.cell(parent, shard) != ABSENT, "a shard's cells are prefix-closed", node
                )
                if held[shard]:
                    require(self.holds(parent, shard), "a shard is held prefix-closed", node)
