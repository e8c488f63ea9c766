"""Sessions' small facts, and taking a subtree away leaf by leaf."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.namespace import LayerGroup
from server.core.index import ROOT
from server.core.namespaces import Owner, peel, shard_groups
from server.core.roster import Roster
from tests.server.core.world import PAGE, World, chain, config, namespace


def test_shards_are_numbered_group_by_group() -> None:
    groups = (
        LayerGroup(layers=(0,), page_bytes=PAGE),
        LayerGroup(layers=(1,), page_bytes=PAGE, replicated=True),
        LayerGroup(layers=(2,), page_bytes=PAGE),
    )
    space = namespace(ranks=3, groups=groups)
    assert shard_groups(space) == [space.group_of(shard) for shard in range(space.num_shards)]
    assert shard_groups(space) == [0, 0, 0, 1, 2, 2, 2]


def owner_of(roster: Roster) -> Owner:
    (owner,) = roster.owners.values()
    return owner


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(0, 59))
def test_peeling_removes_exactly_the_subtree_deepest_first(parents: list[int], top: int) -> None:
    world = World(config(), check=False)
    world.engine().register(namespace())
    owner = owner_of(world.core._state.roster)
    index = owner.index
    made: list[int] = []
    for number, parent in enumerate(parents):
        above = made[parent] if parent < number else ROOT
        made.append(int(index.add_chain(chain(f"n{number}", 1), above, 1)[0]))
    root = made[top % len(made)]
    below = {root}
    for node in made:
        if index.parent[node] in below:
            below.add(node)
    removed: list[int] = []

    def drop(node: int) -> bool:
        removed.append(node)
        index.remove(node)
        return True

    for _ in peel(owner, root, drop):
        pass
    assert set(removed) == below
    assert len(removed) == len(below)
    assert removed[-1] == root


def test_a_refused_leaf_ends_the_peeling() -> None:
    world = World(config(), check=False)
    world.engine().register(namespace())
    owner = owner_of(world.core._state.roster)
    nodes = owner.index.add_chain(chain("x", 3), ROOT, 1).tolist()
    seen: list[int] = []

    def refuse(node: int) -> bool:
        seen.append(node)
        return False

    for _ in peel(owner, nodes[0], refuse):
        pass
    assert seen == [nodes[2]]
