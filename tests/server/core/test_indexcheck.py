"""Each kind of damage to an index is named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from server.core.index import ABSENT, ROOT, ChunkIndex
from server.core.indexcheck import check_index
from server.core.integrity import IntegrityError
from server.core.slots import HELD, SlotTable
from tests.server.core.world import chain


def held_chain() -> tuple[ChunkIndex, list[int]]:
    slots = SlotTable()
    base = slots.add_extent(1, 8)
    index = ChunkIndex(slots, (True,))
    nodes = index.add_chain(chain("x", 4), ROOT, 1)
    numbers = np.arange(base, base + 4)
    index.fill(nodes, 0, numbers)
    slots.state[numbers] = HELD
    slots.node[numbers] = nodes
    index.publish(nodes, 0, 2)
    return index, nodes.tolist()


def test_a_sound_index_passes() -> None:
    index, nodes = held_chain()
    assert check_index(index) == set(nodes)


DAMAGE: dict[str, Callable[[ChunkIndex, list[int]], object]] = {
    "depth follows": lambda index, nodes: index.depth.__setitem__(nodes[2], 7),
    "children are linked": lambda index, nodes: index.first_child.__setitem__(nodes[1], ABSENT),
    "linked both ways": lambda index, nodes: index.previous.__setitem__(nodes[2], nodes[0]),
    "parent is in the index": lambda index, nodes: index.parent.__setitem__(nodes[0], 99),
    "used cells": lambda index, nodes: index.used.__setitem__(nodes[0], 2),
    "missing shards": lambda index, nodes: index.missing.__setitem__(nodes[3], 1),
    "locks are not": lambda index, nodes: index.locks.__setitem__(nodes[3], -1),
    "used or unused": lambda index, nodes: index.by_key.remove(index.key(nodes[3])),
    "knows its key": lambda index, nodes: index.by_key.tables[index.key(nodes[3])[0]].__setitem__(
        index.key(nodes[3]), nodes[2]
    ),
    "one key": lambda index, nodes: setattr(index.by_key, "count", 9),
    "knows its node": lambda index, nodes: index.slots.node_of.__setitem__(
        index.cell(nodes[1], 0), 0
    ),
    "held prefix-closed": lambda index, nodes: (
        index.slots.state_of.__setitem__(index.cell(nodes[1], 0), 1),
        index.missing.__setitem__(nodes[1], 1),
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(what: str) -> None:
    index, nodes = held_chain()
    DAMAGE[what](index, nodes)
    # Some damage breaks two rules; which of them is named first does not matter.
    with pytest.raises(IntegrityError):
        check_index(index)
