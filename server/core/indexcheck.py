"""Whether an index is what it says: its structure recomputed from scratch.

Must not know: leases, engines. Runs in: tests, and wherever an audit is asked for.
"""

from __future__ import annotations

from server.core.index import ABSENT, ROOT, ChunkIndex
from server.core.integrity import require


def check_index(index: ChunkIndex) -> set[int]:
    """Recomputes the structure of an index.

    Args:
        index: which.

    Returns:
        The nodes in it.

    Raises:
        IntegrityError: names what is wrong.
    """
    items = index.by_key.items()
    nodes = {node for _, node in items}
    require(len(nodes) == len(items) == len(index), "a node has one key")
    numbers = sorted([*nodes, *index.given_up()])
    require(numbers == list(range(len(numbers))), "a node is used or unused")
    children: dict[int, set[int]] = {}
    for key, node in items:
        require(index.key(node) == key, "a node knows its key", node)
        children.setdefault(index.parent[node], set()).add(node)
    for node in nodes:
        _check_links(index, node, nodes, children.get(node, set()))
        _check_cells(index, node)
    return nodes


def _check_links(index: ChunkIndex, node: int, nodes: set[int], children: set[int]) -> None:
    parent = index.parent[node]
    require(parent == ROOT or parent in nodes, "a parent is in the index", node, parent)
    depth = 0 if parent == ROOT else index.depth[parent] + 1
    require(index.depth[node] == depth, "depth follows the parent", node)
    linked, before, child = set(), ABSENT, index.first_child[node]
    while child != ABSENT:
        require(index.previous[child] == before, "siblings are linked both ways", child)
        require(child not in linked, "siblings form no ring", child)
        linked.add(child)
        before, child = child, index.next[child]
    require(linked == children, "children are linked", node, linked, children)
    require(not index.is_empty(node), "a node has a slot or a child", node)
    require(index.locks[node] >= 0, "locks are not negative", node)


def _check_cells(index: ChunkIndex, node: int) -> None:
    shards, parent = range(index.num_shards), index.parent[node]
    used = sum(1 for shard in shards if index.cell(node, shard) != ABSENT)
    require(index.used[node] == used, "used cells are counted", node, used)
    held = [index.holds(node, shard) for shard in shards]
    missing = sum(1 for full, has in zip(index.full, held, strict=True) if full and not has)
    require(index.missing[node] == missing, "missing shards are counted", node, missing)
    for shard in shards:
        slot = index.cell(node, shard)
        if slot != ABSENT:
            require(index.slots.node_of[slot] == node, "a slot knows its node", slot, node)
        if index.full[shard] and parent != ROOT and slot != ABSENT:
            require(index.cell(parent, shard) != ABSENT, "a shard's cells are prefix-closed", node)
            if held[shard]:
                require(index.holds(parent, shard), "a shard is held prefix-closed", node)
