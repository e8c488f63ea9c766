"""Order of eviction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import InstanceId
from server.core.eviction import PARKED, LeafLru
from server.core.index import ABSENT, ROOT, ChunkIndex
from server.core.slots import SlotTable
from tests.server.core.world import chain

A, B = InstanceId(b"a" * 16), InstanceId(b"b" * 16)


def leaves_of(count: int) -> tuple[ChunkIndex, LeafLru, list[int]]:
    index = ChunkIndex(SlotTable(), (True,))
    policy = LeafLru(index, 1000)
    nodes = [int(index.add_chain(chain(f"n{n}", 1), ROOT, n + 1)[0]) for n in range(count)]
    for node in nodes:
        index.missing[node] = 0
        policy.offer(node)
    return index, policy, nodes


@given(st.lists(st.integers(0, 9), max_size=60))
def test_the_least_recently_used_leaf_goes_first(touches: list[int]) -> None:
    index, policy, nodes = leaves_of(10)
    for time, number in enumerate(touches):
        index.touch(nodes[number], 100 + time)
    order = sorted(nodes, key=lambda node: (index.stamp[node], node))
    taken = [policy.take(10**6, lambda node: True)[0] for _ in nodes]
    assert [index.stamp[node] for node in taken] == [index.stamp[node] for node in order]
    assert policy.take(10**6, lambda node: True)[0] == ABSENT


def test_what_is_held_is_passed_over_and_comes_back_when_offered() -> None:
    index, policy, nodes = leaves_of(3)
    node, stamp = policy.take(0, lambda node: node != nodes[0])
    assert (node, stamp) == (nodes[1], 2)
    assert index.flags[nodes[0]] == PARKED
    assert index.flags[nodes[1]] == 0
    assert policy.take(0, lambda node: True)[0] == nodes[2]
    assert policy.take(0, lambda node: True)[0] == ABSENT
    policy.offer(nodes[0])
    policy.offer(nodes[0])
    assert policy.take(0, lambda node: True)[0] == nodes[0]
    assert policy.take(0, lambda node: True)[0] == ABSENT


def test_a_node_with_children_waits_until_it_is_a_leaf_again() -> None:
    index, policy, nodes = leaves_of(1)
    (child,) = index.add_chain(chain("c", 1), nodes[0], 50).tolist()
    assert policy.take(0, lambda node: True)[0] == ABSENT
    index.remove(child)
    policy.offer(nodes[0])
    assert policy.take(0, lambda node: True)[0] == nodes[0]


def test_an_entry_of_a_removed_node_is_not_its_successor() -> None:
    index, policy, nodes = leaves_of(1)
    index.remove(nodes[0])
    (again,) = index.add_chain(chain("other", 1), ROOT, 50).tolist()
    assert again == nodes[0]
    assert policy.take(0, lambda node: True)[0] == ABSENT


def test_p08_old_incomplete_chunks_go_before_older_complete_ones() -> None:
    index, policy, nodes = leaves_of(4)
    index.missing[nodes[3]] = 1
    policy.watch(nodes[3], A, 100)
    assert policy.take(500, lambda node: True)[0] == nodes[0]
    assert policy.take(1100, lambda node: True) == (nodes[3], -1)


def test_p08_what_became_complete_is_ordinary_again() -> None:
    index, policy, nodes = leaves_of(2)
    index.missing[nodes[1]] = 1
    policy.watch(nodes[1], A, 100)
    index.missing[nodes[1]] = 0
    assert policy.take(5000, lambda node: True)[0] == nodes[0]


def test_p08_a_dead_engines_incomplete_chunks_go_at_once_and_others_stay() -> None:
    index, policy, nodes = leaves_of(4)
    for node, instance in ((nodes[2], A), (nodes[3], B)):
        index.missing[node] = 1
        policy.watch(node, instance, 100)
    policy.orphan(B)
    assert policy.take(101, lambda node: True)[0] == nodes[3]
    assert policy.take(101, lambda node: True)[0] == nodes[0]


def test_watching_again_and_again_costs_little_and_stays_bounded() -> None:
    index, policy, nodes = leaves_of(4)
    for node in nodes:
        index.missing[node] = 1
    for number in range(100_000):
        policy.watch(nodes[number % 4], A, number)
    assert sum(map(len, policy._incomplete.values())) == 4


def test_entries_of_nodes_that_became_complete_do_not_pile_up() -> None:
    """Taking them out all at once, at the first eviction, would be a burst."""
    index, policy, _ = leaves_of(0)
    before: list[int] = []
    for number in range(3000):
        (node,) = index.add_chain(chain(f"n{number}", 1), ROOT, number).tolist()
        policy.watch(node, A, number)
        if len(before) >= 8:  # the last rank's part comes a little later
            index.missing[before.pop(0)] = 0
        before.append(node)
    assert sum(map(len, policy._incomplete.values())) < 32


def test_entries_of_removed_nodes_are_pruned() -> None:
    index, policy, _ = leaves_of(0)
    for number in range(5000):
        (node,) = index.add_chain(chain(f"n{number}", 1), ROOT, number).tolist()
        policy.watch(node, A, number)
        index.remove(node)
    assert sum(map(len, policy._incomplete.values())) < 200


def test_p08_an_overdue_parent_goes_as_soon_as_its_child_is_gone() -> None:
    index, policy, nodes = leaves_of(2)
    (child,) = index.add_chain(chain("c", 1), nodes[1], 50).tolist()
    index.missing[nodes[1]] = 1
    policy.watch(nodes[1], A, 100)
    policy.offer(child)
    assert policy.take(5000, lambda node: node == nodes[0])[0] == nodes[0]
    index.remove(child)
    policy.offer(nodes[1])
    policy.offer(nodes[0])
    assert policy.take(5000, lambda node: True) == (nodes[1], -1)


def test_p08_an_overdue_chunk_that_is_read_goes_once_it_is_not() -> None:
    index, policy, nodes = leaves_of(2)
    index.missing[nodes[1]] = 1
    policy.watch(nodes[1], A, 100)
    assert policy.take(5000, lambda node: False)[0] == ABSENT
    assert index.flags[nodes[1]] & PARKED  # so that the end of the reading offers it
    for node in nodes:
        policy.offer(node)
    assert policy.take(5000, lambda node: True) == (nodes[1], -1)


def test_a_chunk_that_was_complete_is_watched_again_when_it_lacks_something_else() -> None:
    index, policy, nodes = leaves_of(2)
    index.missing[nodes[1]] = 1
    policy.watch(nodes[1], A, 100)
    index.missing[nodes[1]] = 0
    assert policy.take(5000, lambda node: node == nodes[0])[0] == nodes[0]
    index.missing[nodes[1]] = 1
    policy.watch(nodes[1], A, 6000)
    policy.offer(nodes[0])
    assert policy.take(7001, lambda node: True) == (nodes[1], -1)


@given(
    touches=st.lists(st.integers(0, 29), max_size=40),
    gone=st.sets(st.integers(0, 29), max_size=20),
    grown=st.sets(st.integers(0, 29), max_size=10),
    count=st.integers(1, 12),
)
def test_the_oldest_can_be_seen_and_stay_on_offer(
    touches: list[int], gone: set[int], grown: set[int], count: int
) -> None:
    index, policy, nodes = leaves_of(30)
    for number in sorted(gone):
        index.remove(nodes[number])
    for number in sorted(grown - gone):
        index.add_chain(chain(f"c{number}", 1), nodes[number], 50)
    for time, number in enumerate(touches):
        index.touch(nodes[number], 100 + time)
    left = [nodes[number] for number in range(30) if number not in gone | grown]
    left.sort(key=lambda node: index.stamp[node])
    seen: list[int] = []
    for _ in range(40):  # entries that are out of date are put right a few at a time
        seen = policy.oldest(count)
        assert len(seen) <= count
        assert set(seen) <= set(left)
    # Where a touched leaf hides another behind it, fewer are seen; the first one always is.
    assert seen[:1] == left[:1]
    taken = [policy.take(10**6, lambda node: True)[0] for _ in left]
    assert sorted(taken) == sorted(left)
    assert policy.take(10**6, lambda node: True)[0] == ABSENT
