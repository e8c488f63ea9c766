"""The index against a model: prefix closure, bisection, lines, life."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from server.core.index import ABSENT, ROOT, SMALL_ROOM, ChunkIndex
from server.core.indexcheck import check_index
from server.core.slots import HELD, RESERVED, SlotTable
from tests.server.core.world import chain

SHARDS = (True, True)


class IndexMachine(RuleBasedStateMachine):
    """Chains a and b share their first half; the model maps a key to its held shards."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotTable()
        self.base = self.slots.add_extent(1, 4096)
        self.unused = list(range(self.base, self.base + 4096))
        self.index = ChunkIndex(self.slots, SHARDS)
        trunk = chain("t", 40)
        self.chains = [trunk, trunk[:20] + chain("u", 40)[20:]]
        self.held: dict[bytes, set[int]] = {}

    def fill(self, node: int, shard: int, kind: int) -> None:
        slot = self.unused.pop()
        self.slots.state_of[slot] = kind
        self.slots.node_of[slot] = node
        self.slots.generation[slot] = slot + 1
        self.index.fill(np.array([node]), shard, np.array([slot]))
        if kind == HELD:
            self.index.publish(np.array([node]), shard, 1)

    @rule(which=st.integers(0, 1), shard=st.integers(0, 1), length=st.integers(1, 40))
    def hold(self, which: int, shard: int, length: int) -> None:
        keys = self.chains[which]
        parent = ROOT
        for key in keys[:length]:
            node = self.index.find(key)
            if node == ABSENT:
                node = int(self.index.add_chain([key], parent, 1)[0])
            if not self.index.holds(node, shard):
                self.fill(node, shard, HELD)
                self.held.setdefault(key, set()).add(shard)
            parent = node

    @rule(which=st.integers(0, 1), count=st.integers(1, 15))
    def drop_line(self, which: int, count: int) -> None:
        deepest = [key for key in self.chains[which] if key in self.held]
        if not deepest:
            return
        leaf = self.index.find(deepest[-1])
        if self.index.first_child[leaf] != ABSENT:
            return
        line = self.index.only_line(leaf, 1, count)
        for node in line:
            del self.held[self.index.key(node)]
            for shard in range(2):
                slot = self.index.cell(node, shard)
                if slot != ABSENT:
                    self.slots.state_of[slot] = 0
                    self.slots.node_of[slot] = -1
                    self.slots.generation[slot] = 0
        lives = [self.index.life[node] for node in line]
        self.index.remove_line(line)
        assert [self.index.life[node] for node in line] == [life + 1 for life in lives]

    @invariant()
    def bisection_agrees_with_a_walk(self) -> None:
        check_index(self.index)
        for keys in self.chains:
            for start in (0, 7):
                count = 0
                for key in keys[start:]:
                    if self.held.get(key) != {0, 1}:
                        break
                    count += 1
                # A range that begins beyond a gap is no prefix; chains here have no gaps.
                found, node = self.index.complete_prefix(b"".join(keys[start:]), start)
                assert found == count
                assert node == (self.index.find(keys[start + count - 1]) if count else ABSENT)
                for shard in range(2):
                    held = sum(1 for key in keys if shard in self.held.get(key, ()))
                    assert self.index.held_prefix(b"".join(keys), 0, shard)[0] == held


TestIndex = IndexMachine.TestCase


@given(st.integers(1, 3000))
def test_a_chain_of_any_length_is_linked(length: int) -> None:
    index = ChunkIndex(SlotTable(), (True,))
    keys = chain("x", length)
    nodes = index.add_chain(keys, ROOT, 5).tolist()
    assert index.find_all(keys) == nodes
    assert [index.depth[node] for node in nodes] == list(range(length))
    assert index.parent[nodes[0]] == ROOT
    assert [index.parent[node] for node in nodes[1:]] == nodes[:-1]
    assert index.only_line(nodes[-1], 5, length + 1) == nodes[::-1]
    assert index.remove_line(nodes[::-1]) == ROOT
    assert len(index) == 0
    check_index(index)


def test_keys_that_begin_elsewhere_are_no_hit() -> None:
    slots = SlotTable()
    index = ChunkIndex(slots, (False,))
    keys = chain("x", 6)
    index.add_chain(keys, ROOT, 1)
    assert index.complete_prefix(b"".join(keys), 0)[0] == 6
    assert index.complete_prefix(b"".join(keys), 1) == (0, ABSENT)
    assert index.complete_prefix(b"".join(keys[2:]), 2)[0] == 4


def test_a_locked_or_branching_ancestor_ends_a_line() -> None:
    index = ChunkIndex(SlotTable(), (True,))
    keys = chain("x", 6)
    nodes = index.add_chain(keys, ROOT, 1).tolist()
    index.locks[nodes[2]] = 1
    assert index.only_line(nodes[5], 1, 99) == [nodes[5], nodes[4], nodes[3]]
    index.locks[nodes[2]] = 0
    index.touch(nodes[3], 9)
    assert index.only_line(nodes[5], 1, 99) == [nodes[5], nodes[4]]
    branch = index.add_chain(chain("y", 1), nodes[4], 1).tolist()
    assert index.only_line(nodes[5], 9, 99) == [nodes[5]]
    assert index.only_line(branch[0], 9, 99) == branch


def test_a_replaced_index_is_buried_in_slices() -> None:
    index = ChunkIndex(SlotTable(), (True,))
    index.add_chain(chain("x", 5000), ROOT, 1)
    assert sum(1 for _ in index.bury()) > 5
    assert len(index) == 0


def test_reserved_is_not_held() -> None:
    slots = SlotTable()
    slot = slots.add_extent(1, 1)
    index = ChunkIndex(slots, (True,))
    (node,) = index.add_chain(chain("x", 1), ROOT, 1).tolist()
    index.cells[node, 0] = slot
    slots.state_of[slot] = RESERVED
    assert not index.holds(node, 0)
    assert index.complete_prefix(chain("x", 1)[0], 0) == (0, ABSENT)


def test_a_window_group_lacks_what_only_some_of_its_ranks_have() -> None:
    slots = SlotTable()
    base = slots.add_extent(1, 8)
    index = ChunkIndex(slots, (True, False, False), ((1, 2),))
    nodes = index.add_chain(chain("x", 2), ROOT, 1)
    lacking = []
    for shard in (0, 1, 2):
        numbers = np.arange(base, base + 2) + 2 * shard
        index.fill(nodes, shard, numbers)
        slots.state[numbers] = HELD
        lacking.append(index.publish(nodes, shard, 2)[1])
    assert lacking == [[], nodes.tolist(), []]


def test_an_index_that_grows_keeps_what_it_has() -> None:
    index = ChunkIndex(SlotTable(), (True,), room=300)
    keys, parent = chain("x", 2000), ROOT
    for begin in range(0, 2000, 50):
        nodes = index.add_chain(keys[begin : begin + 50], parent, 1)
        index.flags[int(nodes[0])] = 7
        parent = int(nodes[-1])
    found = index.find_all(keys)
    assert [index.key(node) for node in found] == keys
    assert [index.depth[node] for node in found] == list(range(2000))
    assert [index.flags[node] for node in found[::50]] == [7] * 40
    assert all(index.cell(node, 0) == ABSENT for node in found)


def test_room_for_all_that_can_come_costs_nothing_until_it_comes() -> None:
    keys = chain("x", SMALL_ROOM + 1000)
    index = ChunkIndex(SlotTable(), (True,), room=1 << 18)
    parent = int(index.add_chain(keys[:SMALL_ROOM], ROOT, 1)[-1])
    before = resident_bytes()
    parent = int(index.add_chain(keys[SMALL_ROOM : SMALL_ROOM + 10], parent, 1)[-1])
    assert resident_bytes() - before < 6 << 20  # of 17 MiB
    cells = index.cells
    assert len(cells) == 1 << 18
    index.add_chain(keys[SMALL_ROOM + 10 :], parent, 1)
    assert index.cells is cells  # nothing was moved


def test_an_index_of_few_chunks_is_small() -> None:
    before = resident_bytes()
    made = [ChunkIndex(SlotTable(), (True,), room=1 << 24) for _ in range(100)]
    for index in made:
        index.add_chain(chain("x", 10), ROOT, 1)
    assert resident_bytes() - before < 100 * 128 * 1024


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_keys_parents_lives_and_uses_of_many_nodes_at_once() -> None:
    index = ChunkIndex(SlotTable(), (True,))
    keys = chain("x", 5)
    nodes = index.add_chain(keys, ROOT, 1)
    assert [bytes(key) for key in index.keys_of(nodes)] == keys
    assert [bytes(key) for key in index.parent_keys(nodes)] == [bytes(16), *keys[:4]]
    index.uses[int(nodes[4])] = 7
    assert index.uses_of(nodes).tolist() == [0, 0, 0, 0, 7]
    index.remove(int(nodes[4]))
    assert index.lives(nodes).tolist() == [0, 0, 0, 0, 1]
    assert bytes(index.keys_of(nodes[4:])[0]) == keys[4]
    (again,) = index.add_chain(chain("y", 1), ROOT, 2).tolist()
    assert (again, index.uses[again]) == (nodes[4], 0)
