"""Which leaf goes first where salts have quotas: an order for each account, and whose turn it is.

Purpose: an order of eviction like ``LeafLru`` for each account of a namespace, over one index. Who
stores may take the oldest leaf of those accounts that hold more than their floor, and of its own.
Must not know: extents, budgets, engines. Runs in: the loop thread.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from enum import Enum

from protocol.ids import InstanceId
from server.core.accounts import COMMON, Accounts
from server.core.eviction import EvictionPolicy, LeafLru
from server.core.index import ABSENT
from server.core.namespaces import Owner


class Whose(Enum):
    """Whose chunks may go."""

    ANYONES = 0
    OTHERS = 1
    OWN = 2


class TenantLeaves:
    """The leaves of one index by account.

    Args:
        owner: the namespace.
        accounts: what each account holds.
        common: the order of the chunks that were there before; it stays that of COMMON.
        incomplete_timeout_us: age from which an incomplete chunk goes first.
    """

    def __init__(
        self,
        owner: Owner,
        accounts: Accounts,
        common: EvictionPolicy,
        incomplete_timeout_us: int,
    ) -> None:
        self._index = owner.index
        self._accounts = accounts
        self._timeout_us = incomplete_timeout_us
        self._chunk_bytes = sum(owner.slot_bytes)
        self._orders: dict[int, EvictionPolicy] = {COMMON: common}
        self._asking = COMMON
        self._whose = Whose.ANYONES
        self._turns: list[tuple[int, int]] = []
        self._turn_of: dict[int, tuple[int, int]] = {}
        self._changed: set[int] = set()

    def _order(self, node: int) -> EvictionPolicy:
        number = self._index.account[node]
        self._changed.add(number)
        order = self._orders.get(number)
        if order is None:
            order = self._orders[number] = LeafLru(self._index, self._timeout_us)
        return order

    def offer(self, node: int) -> None:
        """A node became a leaf, or stopped being held by something."""
        self._order(node).offer(node)

    def load(self, leaves: list[int], parked: list[int]) -> None:
        """Many nodes became leaves at once; something holds the second kind."""
        account = self._index.account
        numbers = {account[node] for node in (*leaves, *parked)}
        for number in numbers:
            mine = [
                [node for node in nodes if account[node] == number] for nodes in (leaves, parked)
            ]
            if any(mine):
                self._order((mine[0] or mine[1])[0]).load(*mine)

    def watch(self, node: int, instance: InstanceId, now_us: int) -> None:
        """A node was published by an engine and still lacks shards."""
        self._order(node).watch(node, instance, now_us)

    def orphan(self, instance: InstanceId) -> None:
        """An engine died: what it left incomplete goes first."""
        for order in self._orders.values():
            order.orphan(instance)

    def aim(self, asking: int, whose: Whose) -> None:
        """Says for whom the next leaves are taken, until what accounts hold changes otherwise.

        Here the accounts are put in order, and then only those are moved of which something is
        taken or comes on offer: to sort 255 of them for every leaf were 80 µs.

        Args:
            asking: account of who needs room.
            whose: which chunks may go for it.
        """
        self._asking, self._whose = asking, whose
        self._changed.clear()
        numbers = [asking] if whose is Whose.OWN else self._orders
        self._turn_of = {
            number: self._turn(number)
            for number in numbers
            if number in self._orders and self._may_lose(number)
        }
        self._turns = sorted(self._turn_of.values())

    def take(self, now_us: int, evictable: Callable[[int], bool]) -> tuple[int, int]:
        """The leaf to evict, or ABSENT; see ``LeafLru.take``. Nobody falls below its floor."""
        if self._changed:
            self._correct()
        while self._turns:
            number = self._turns[0][1]
            node, stamp = self._orders[number].take(now_us, evictable)
            if node != ABSENT:
                self._changed.add(number)
                return node, stamp
            # Nothing of it can go before something of it comes on offer.
            del self._turns[0], self._turn_of[number]
        return ABSENT, -1

    def _correct(self) -> None:
        """Gives accounts their turns anew of which something was taken, or came on offer."""
        for number in self._changed:
            turn = self._turn_of.pop(number, None)
            if turn is not None:
                del self._turns[bisect_left(self._turns, turn)]
            if self._may_lose(number):
                turn = self._turn_of[number] = self._turn(number)
                insort(self._turns, turn)
        self._changed.clear()

    def _turn(self, number: int) -> tuple[int, int]:
        """About when the oldest leaf of an account was used, and its number."""
        return self._orders[number].oldest_us() or 0, number

    def _may_lose(self, number: int) -> bool:
        if number == self._asking:
            return self._whose is not Whose.OTHERS
        if self._whose is Whose.OWN:
            return False
        return number == COMMON or self._spare(number) >= self._chunk_bytes

    def _spare(self, number: int) -> int:
        account = self._accounts.by_number[number]
        return account.held_bytes - account.floor_bytes

    def within(self, line: list[int]) -> list[int]:
        """What of a line of leaf and ancestors may go: of one account, and not below its floor.

        Args:
            line: from ``ChunkIndex.only_line``; the leaf from ``take``.
        """
        account, number = self._index.account, self._index.account[line[0]]
        most = len(line)
        if number not in (COMMON, self._asking):
            most = min(most, max(1, self._spare(number) // self._chunk_bytes))
        for count in range(1, most):
            if account[line[count]] != number:
                return line[:count]
        return line[:most]

    def oldest_us(self) -> int | None:
        """About when the leaf to evict next was last used; None without one."""
        ages = [order.oldest_us() for order in self._orders.values()]
        return min((age for age in ages if age is not None), default=None)

    def oldest(self, count: int) -> list[int]:
        """About the leaves to evict next, of each account its share: each has its own turn."""
        part = max(1, count // len(self._orders))
        return [node for order in self._orders.values() for node in order.oldest(part)]
