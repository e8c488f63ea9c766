"""Which leaf goes first where salts have quotas."""

from __future__ import annotations

from collections.abc import Callable

from protocol.ids import Fingerprint, InstanceId
from server.core.accounts import COMMON, Accounts
from server.core.eviction import PARKED, LeafLru
from server.core.index import ABSENT, ROOT, ChunkIndex
from server.core.namespaces import Owner
from server.core.slots import SlotTable
from server.core.tenantleaves import TenantLeaves, Whose
from tests.server.core.test_quotas import OTHER, SALT
from tests.server.core.world import PAGE, chain, namespace

LATE = 10**6
NAME = Fingerprint(b"f" * 16)


class Rig:
    """Leaves of one shard; number 1 is SALT, 2 is OTHER."""

    def __init__(self) -> None:
        self.index = ChunkIndex(SlotTable(), (True,))
        common = LeafLru(self.index, 1000)
        self.owner = Owner(NAME, namespace(), self.index, common, [[]], (1,), (0,))
        self.accounts = Accounts()
        self.accounts.open(SALT)
        self.accounts.open(OTHER)
        self.leaves = TenantLeaves(self.owner, self.accounts, common, 1000)
        self.times = 0

    def add(self, number: int, parent: int = ROOT) -> int:
        self.times += 1
        keys = chain(f"n{self.times}", 1)
        node = int(self.index.add_chain(keys, parent, self.times, number)[0])
        self.index.missing[node] = 0
        self.leaves.offer(node)
        if number:
            mine = self.accounts.by_number[number].held_in
            mine[NAME] = mine.get(NAME, 0) + PAGE
        return node

    def floor(self, number: int, pages: int) -> None:
        self.accounts.by_number[number].floor_bytes = pages * PAGE

    def take(
        self,
        asking: int = COMMON,
        whose: Whose = Whose.ANYONES,
        evictable: Callable[[int], bool] = lambda node: True,
    ) -> int:
        self.leaves.aim(asking, whose)
        node, _ = self.leaves.take(LATE, evictable)
        if node != ABSENT and (number := self.index.account[node]):
            self.accounts.by_number[number].held_in[NAME] -= PAGE
        return node


def test_the_oldest_of_those_above_their_floor_goes_first() -> None:
    rig = Rig()
    a, b, c, d = rig.add(1), rig.add(1), rig.add(COMMON), rig.add(2)
    rig.floor(1, 1)
    rig.floor(2, 1)
    assert [rig.take(), rig.take()] == [a, c]
    assert rig.take() == ABSENT
    assert rig.leaves.oldest_us() == rig.index.stamp[b]
    rig.floor(2, 0)
    assert rig.take() == d


def test_one_may_always_take_its_own() -> None:
    rig = Rig()
    mine = [rig.add(1), rig.add(1)]
    rig.floor(1, 9)
    rig.add(COMMON)
    assert [rig.take(1), rig.take(1, Whose.OWN)] == mine
    assert rig.take(1, Whose.OWN) == ABSENT


def test_others_means_not_its_own() -> None:
    rig = Rig()
    rig.add(1)
    other, common = rig.add(2), rig.add(COMMON)
    assert [rig.take(1, Whose.OTHERS) for _ in range(3)] == [other, common, ABSENT]


def test_a_line_ends_where_anothers_chunks_begin_and_at_the_floor() -> None:
    rig = Rig()
    top = rig.add(COMMON)
    line = [rig.add(1, top)]
    line.append(rig.add(1, line[0]))
    line.append(rig.add(1, line[1]))
    up = [*reversed(line), top]
    rig.leaves.aim(COMMON, Whose.ANYONES)
    assert rig.leaves.within(up) == up[:3]
    rig.floor(1, 1)
    assert rig.leaves.within(up) == up[:2]
    rig.leaves.aim(1, Whose.OWN)
    assert rig.leaves.within(up) == up[:3]
    assert rig.leaves.within([top]) == [top]


class Counting(LeafLru):
    """Counts how often somebody asks for its age."""

    asked = 0

    def oldest_us(self) -> int | None:
        self.asked += 1
        return super().oldest_us()


def test_accounts_are_put_in_order_once_and_not_for_every_leaf() -> None:
    rig = Rig()
    common = Counting(rig.index, 1000)
    rig.leaves = TenantLeaves(rig.owner, rig.accounts, common, 1000)
    nodes = [rig.add(number) for _ in range(10) for number in (1, 2)]
    last = rig.add(COMMON)
    rig.leaves.aim(COMMON, Whose.ANYONES)
    assert [rig.leaves.take(LATE, lambda node: True)[0] for _ in range(20)] == nodes
    assert common.asked <= 2
    assert rig.leaves.take(LATE, lambda node: True)[0] == last


def test_what_is_taken_and_what_comes_on_offer_moves_an_accounts_turn() -> None:
    rig = Rig()
    parent, first, second = rig.add(2), rig.add(1), rig.add(1)
    leaf, third = rig.add(COMMON, parent), rig.add(1)
    rig.floor(1, 1)
    rig.leaves.aim(COMMON, Whose.ANYONES)
    took = []
    for _ in range(5):
        node, _ = rig.leaves.take(LATE, lambda node: True)
        took.append(node)
        if node != ABSENT and rig.index.account[node]:
            rig.accounts.by_number[rig.index.account[node]].held_in[NAME] -= PAGE
        if node == leaf:
            rig.index.remove(leaf)
            rig.leaves.offer(parent)
    assert took == [first, second, leaf, parent, ABSENT]
    assert rig.leaves.oldest_us() == rig.index.stamp[third]


def test_each_account_has_its_part_of_the_oldest() -> None:
    rig = Rig()
    nodes = [rig.add(number) for number in (1, 1, 1, COMMON, COMMON, 2)]
    assert sorted(rig.leaves.oldest(6)) == sorted([*nodes[:2], *nodes[3:]])


def test_incomplete_chunks_of_an_engine_that_died_go_first() -> None:
    rig = Rig()
    engine = InstanceId(b"e" * 16)
    old, half = rig.add(COMMON), rig.add(1)
    rig.index.missing[half] = 1
    rig.leaves.watch(half, engine, 1)
    rig.leaves.orphan(engine)
    assert rig.take(1, Whose.OWN) == half
    assert rig.take() == old


def test_many_at_once_are_sorted_by_account() -> None:
    rig = Rig()
    nodes = [
        int(rig.index.add_chain(chain(f"m{at}", 1), ROOT, at, at % 3)[0]) for at in range(1, 10)
    ]
    rig.leaves.load(nodes[:7], nodes[7:])
    assert [rig.index.flags[node] for node in nodes[7:]] == [PARKED, PARKED]
    rig.accounts.by_number[1].held_in[NAME] = 9 * PAGE
    assert rig.take(1, Whose.OWN) == nodes[0]
    assert rig.take() == nodes[2]
