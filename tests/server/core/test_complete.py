"""Which nodes are complete: one, many and a page of them agree, for every kind of namespace."""

from __future__ import annotations

import numpy as np
import pytest

from server.core.complete import became_complete, complete_nodes, complete_of, is_complete
from server.core.index import ROOT, ChunkIndex
from server.core.slots import HELD, RESERVED, SlotTable
from tests.server.core.world import chain


class Filled:
    """An index whose slots are taken in order."""

    def __init__(self, full: tuple[bool, ...], windows: tuple[tuple[int, ...], ...] = ()) -> None:
        self.slots = SlotTable()
        self.slots.add_extent(1, 512)
        self.index = ChunkIndex(self.slots, full, windows)
        self.next = 0

    def reserve(self, nodes: list[int], shard: int) -> None:
        numbers = np.arange(self.next, self.next + len(nodes))
        self.next += len(nodes)
        self.slots.state[numbers] = RESERVED
        self.index.fill(np.array(nodes), shard, numbers)

    def publish(self, nodes: list[int], shard: int) -> list[int]:
        """Publishes a shard; returns the nodes that are said to be complete by that."""
        array = np.array(nodes, dtype=np.int64)
        self.slots.state[self.index.cells[array, shard]] = HELD
        _, lacking = self.index.publish(array, shard, 1)
        runs = became_complete(self.index, array, shard, len(lacking))
        return [node for first, end in runs for node in nodes[first:end]]

    def check(self, expected: list[int]) -> None:
        every = np.arange(self.index._num_taken, dtype=np.int64)
        assert every[complete_of(self.index, every)].tolist() == sorted(expected)
        assert [node for node in self.index.nodes() if is_complete(self.index, node)] == expected
        paged: list[int] = []
        begin: int | None = 0
        while begin is not None:
            found, begin = complete_nodes(self.index, begin, 3, 2)
            assert found.size <= 2
            paged += found.tolist()
        assert paged == sorted(expected)


KINDS = [
    ((True, True), ()),
    ((True, True, False, False), ((2, 3),)),
    ((True, True, False), ()),
]


@pytest.mark.parametrize(("full", "windows"), KINDS)
def test_with_full_attention_the_last_full_shard_makes_it(
    full: tuple[bool, ...], windows: tuple[tuple[int, ...], ...]
) -> None:
    filled = Filled(full, windows)
    nodes = filled.index.add_chain(chain("x", 6), ROOT, 1).tolist()
    for shard in range(len(full)):
        filled.reserve(nodes, shard)
    filled.check([])
    assert filled.publish(nodes[:5], 0) == []
    if len(full) > 2:
        assert filled.publish(nodes[:2], 2) == []
    filled.check([])
    assert filled.publish(nodes[:2], 1) == nodes[:2]
    filled.check(nodes[:2])
    assert filled.publish(nodes[2:5], 1) == nodes[2:5]
    filled.check(nodes[:5])
    if len(full) > 2:
        assert filled.publish(nodes[2:4], 2) == []
    filled.index.remove_line(nodes[:3:-1])
    filled.check(nodes[:4])


def test_with_windows_only_the_first_shard_makes_it() -> None:
    filled = Filled((False, False), ((0, 1),))
    nodes = filled.index.add_chain(chain("x", 5), ROOT, 1).tolist()
    for shard in range(2):
        filled.reserve(nodes, shard)
    filled.check([])
    assert filled.publish([nodes[1], nodes[3]], 0) == [nodes[1], nodes[3]]
    filled.check([nodes[1], nodes[3]])
    assert filled.publish(nodes, 1) == [nodes[0], nodes[2], nodes[4]]
    filled.check(nodes)
    assert filled.publish([nodes[0]], 0) == []
    filled.index.remove_line([nodes[4]])
    filled.check(nodes[:4])


@pytest.mark.parametrize(("full", "looked"), [((True,) * 4, 8), ((False,) * 4, 2)])
def test_a_page_without_full_attention_looks_at_as_many_cells_and_not_nodes(
    full: tuple[bool, ...], looked: int
) -> None:
    filled = Filled(full, () if full[0] else ((0, 1, 2, 3),))
    filled.index.add_chain(chain("x", 12), ROOT, 1)
    _, end = complete_nodes(filled.index, 1, 8, 100)
    assert end == 1 + looked
    _, end = complete_nodes(filled.index, 1, 1, 100)
    assert end == 2, "it always gets on"
