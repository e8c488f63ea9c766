"""How many bytes each salt with a quota holds, counted as chunks come and go.

Purpose: nodes of an index carry the number of an account, 0 for nobody's; whoever publishes or
drops a slot tells it here, so that the sums are exact at every moment. Without a single account
nobody counts anything. Must not know: what a quota allows, messages. Runs in: the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ErrorCode, RequestError
from protocol.ids import Fingerprint
from server.core.index import ABSENT, ChunkIndex
from server.core.namespaces import Owner

COMMON = 0
"""Of chunks that count for no salt's quota."""

MAX_ACCOUNTS = 255
"""Salts that may have had a quota since the server began: nodes may still carry their numbers."""


@dataclass
class Account:
    """One salt that has, or had, a quota.

    Attributes:
        number: what nodes carry.
        tenant: digest of the salt.
        floor_bytes: what others leave it.
        limit_bytes: most that it may hold, 0 for no limit.
        held_in: slots' bytes of its published chunks, by namespace.
        reserved_bytes: slots' bytes that its STOREs and promotions have taken and not published.
    """

    number: int
    tenant: bytes
    floor_bytes: int = 0
    limit_bytes: int = 0
    held_in: dict[Fingerprint, int] = field(default_factory=dict)
    reserved_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """Slots' bytes of its published chunks."""
        return sum(self.held_in.values())

    @property
    def taken_bytes(self) -> int:
        """The same, and of those that are not published yet."""
        return self.held_bytes + self.reserved_bytes


class Accounts:
    """Every account.

    Attributes:
        by_number: without COMMON.
        by_tenant: their numbers.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, Account] = {}
        self.by_tenant: dict[bytes, int] = {}

    def open(self, tenant: bytes) -> Account:
        """The account of a salt, new if need be.

        Args:
            tenant: digest of the salt.

        Raises:
            RequestError: LIMIT_EXCEEDED.
        """
        number = self.by_tenant.get(tenant)
        if number is None:
            number = len(self.by_number) + 1
            if number > MAX_ACCOUNTS:
                raise RequestError(
                    ErrorCode.LIMIT_EXCEEDED,
                    f"{MAX_ACCOUNTS} salts had a quota since the server began: start it again",
                )
            self.by_tenant[tenant] = number
            self.by_number[number] = Account(number, tenant)
        return self.by_number[number]

    def number(self, tenant: bytes) -> int:
        """The account of a request's tenant; COMMON for one that never had a quota."""
        return self.by_tenant.get(tenant, COMMON)

    # --- counting ---------------------------------------------------------------------------

    def published(self, owner: Owner, nodes: NDArray[np.int64], shard: int) -> None:
        """Counts slots of one shard that were just published.

        Args:
            owner: whose.
            nodes: int64[n], each once.
            shard: of the slots.
        """
        if self.by_number:
            self._add_all(owner, owner.index.accounts_of(nodes), owner.slot_bytes[shard])

    def dropped(self, owner: Owner, node: int, shard: int) -> None:
        """Counts a held slot that the index is about to name no more."""
        if self.by_number:
            self._add(owner, owner.index.account[node], -owner.slot_bytes[shard])

    def dropped_line(
        self, owner: Owner, nodes: NDArray[np.int64], named: NDArray[np.bool_]
    ) -> None:
        """The same for several chunks at once.

        Args:
            owner: whose.
            nodes: int64[n].
            named: bool[n, num_shards], cells that name a held slot.
        """
        if self.by_number:
            accounts = owner.index.accounts_of(nodes)
            for shard, slot_bytes in enumerate(owner.slot_bytes):
                self._add_all(owner, accounts[named[:, shard]], -slot_bytes)

    def cleared(self, owner: Owner) -> None:
        """Nothing of a namespace is found any more."""
        for account in self.by_number.values():
            account.held_in.pop(owner.fingerprint, None)

    def adopted(self, owner: Owner, accounts: NDArray[np.int32], cells: NDArray[np.int32]) -> None:
        """Counts what was found at the start.

        Args:
            owner: whose.
            accounts: int32[n], of each node.
            cells: int32[n, num_shards], its held slots, or ABSENT.
        """
        for shard, slot_bytes in enumerate(owner.slot_bytes):
            self._add_all(owner, accounts[cells[:, shard] != ABSENT], slot_bytes)

    def reserved(self, number: int, num_slots: int, slot_bytes: int) -> None:
        """Counts slots that were taken, or, below 0, published or given back."""
        if number:
            self.by_number[number].reserved_bytes += num_slots * slot_bytes

    def _add_all(self, owner: Owner, accounts: NDArray[np.int32], slot_bytes: int) -> None:
        if not accounts.any():
            return
        counts = np.bincount(accounts)
        for number in np.flatnonzero(counts).tolist():
            self._add(owner, number, int(counts[number]) * slot_bytes)

    def _add(self, owner: Owner, number: int, num_bytes: int) -> None:
        if number:
            held, name = self.by_number[number].held_in, owner.fingerprint
            held[name] = held.get(name, 0) + num_bytes
            if not held[name]:
                del held[name]


def node_bytes(owner: Owner, index: ChunkIndex, node: int) -> int:
    """Bytes of the slots that a chunk's cells name."""
    return sum(
        size for shard, size in enumerate(owner.slot_bytes) if index.cell(node, shard) != ABSENT
    )
