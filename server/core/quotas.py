"""Quotas: what a tenant's chunks are safe from, and what it may not exceed.

Purpose: one place that knows every floor and limit and answers whether something may be taken from
a tenant, and whether one may take more. A tenant is a namespace or a salt. Must not know: how room
is made, files, messages' frames. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ErrorCode, RequestError
from protocol.ids import Fingerprint
from protocol.quotas import MAX_QUOTAS, QuotaChange, QuotaRow, TenantKind
from server.core.accounts import MAX_ACCOUNTS, Accounts, node_bytes
from server.core.extents import Extent
from server.core.namespaces import Owner
from server.core.slots import HELD
from server.core.tierquotas import TierQuotas, held
from server.core.tiers.tier import Tier
from server.sizes import exact_size

LOOK_SLOTS = 1 << 14
"""Slots that are looked at before a hit among them ends the look."""


@dataclass(frozen=True)
class Quota:
    """One namespace's.

    Attributes:
        floor_bytes: what others leave it.
        limit_bytes: most that it may hold, 0 for no limit.
    """

    floor_bytes: int
    limit_bytes: int


NO_QUOTA = Quota(0, 0)


def name_of(change: QuotaChange) -> tuple[TenantKind, bytes, str]:
    """Of what a change says something: of each such thing there is one quota."""
    return change.kind, change.tenant, change.tier


class Quotas:
    """Every tenant's quota.

    Args:
        arena_bytes: of L1; the floors together are no more.
        accounts: what salts hold.

    Attributes:
        namespaces: those of namespaces, whether anything of them is held or not.
        accounts: what salts hold.
        below: those of lower tiers; None without any such tier.
    """

    def __init__(self, arena_bytes: int, accounts: Accounts) -> None:
        self.below: TierQuotas | None = None
        self._arena_bytes = arena_bytes
        self.namespaces: dict[Fingerprint, Quota] = {}
        self.accounts = accounts

    # --- setting ----------------------------------------------------------------------------

    def change(self, change: QuotaChange) -> None:
        """Sets one tenant's quota, or takes it back.

        Args:
            change: what is to hold.

        Raises:
            RequestError: INVALID_ARGUMENT or LIMIT_EXCEEDED; nothing has changed then.
        """
        if change.kind is TenantKind.SALT and not any(change.tenant):
            # The records of all that no tenant stored say so: it would be charged with them.
            raise RequestError(ErrorCode.INVALID_ARGUMENT, "16 zero bytes are no salt's digest")
        known = {name_of(one): one for one in self.changes()}
        before = known.pop(name_of(change), None)
        if change.floor_bytes or change.limit_bytes:
            self._check(change, known.values())
        if change.tier:
            self._change_below(change)
            return
        if before is None and not change.floor_bytes and not change.limit_bytes:
            return
        if change.kind is TenantKind.SALT:
            account = self.accounts.open(change.tenant)
            account.floor_bytes, account.limit_bytes = change.floor_bytes, change.limit_bytes
            return
        name = Fingerprint(change.tenant)
        self.namespaces.pop(name, None)
        if change.floor_bytes or change.limit_bytes:
            self.namespaces[name] = Quota(change.floor_bytes, change.limit_bytes)

    def _check(self, change: QuotaChange, others: Iterable[QuotaChange]) -> None:
        known = list(others)
        floors = [one.floor_bytes for one in known if not one.tier]
        if 0 < change.limit_bytes < change.floor_bytes:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"a limit of {exact_size(change.limit_bytes)} is below the floor of "
                f"{exact_size(change.floor_bytes)}",
            )
        left_bytes = max(0, self._arena_bytes - sum(floors))
        if not change.tier and change.floor_bytes > left_bytes:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"L1 has {exact_size(self._arena_bytes)}, of which {exact_size(sum(floors))} are "
                f"others' floors: {exact_size(left_bytes)} are left",
                left_bytes=left_bytes,
            )
        if len(known) >= MAX_QUOTAS:
            raise RequestError(ErrorCode.LIMIT_EXCEEDED, f"there are at most {MAX_QUOTAS} quotas")

    def _change_below(self, change: QuotaChange) -> None:
        if self.below is None:
            raise RequestError(ErrorCode.INVALID_ARGUMENT, "there are no lower tiers")
        self.below.check(change)
        self.below.change(change)

    def changes(self) -> list[QuotaChange]:
        """All that is set, namespaces first, as changes that would set it anew; L1's first."""
        spaces = [
            QuotaChange(
                kind=TenantKind.NAMESPACE,
                tenant=name,
                floor_bytes=quota.floor_bytes,
                limit_bytes=quota.limit_bytes,
            )
            for name, quota in self.namespaces.items()
        ]
        salts = [
            QuotaChange(
                kind=TenantKind.SALT,
                tenant=account.tenant,
                floor_bytes=account.floor_bytes,
                limit_bytes=account.limit_bytes,
            )
            for account in self.accounts.by_number.values()
            if account.floor_bytes or account.limit_bytes
        ]
        return spaces + salts + (self.below.changes() if self.below is not None else [])

    def rows(self, owners: dict[Fingerprint, Owner], tiers: Sequence[Tier]) -> tuple[QuotaRow, ...]:
        """All that is set, and what each tenant holds.

        Args:
            owners: namespaces that are known.
            tiers: some of which count what tenants have there.
        """

        def held_bytes(change: QuotaChange) -> int:
            if change.kind is TenantKind.SALT:
                return self.accounts.open(change.tenant).held_bytes
            owner = owners.get(Fingerprint(change.tenant))
            return owner.held_bytes if owner is not None else 0

        below = self.below.rows() if self.below is not None else []
        return (
            *(
                QuotaRow(
                    kind=one.kind,
                    tenant=one.tenant,
                    floor_bytes=one.floor_bytes,
                    limit_bytes=one.limit_bytes,
                    held_bytes=held_bytes(one),
                    tier_bytes={
                        tier.name: size
                        for tier in tiers
                        if (size := held(tier, one.kind, one.tenant)) is not None
                    },
                )
                for one in self.changes()
                if not one.tier
            ),
            *below,
        )

    # --- asking -----------------------------------------------------------------------------

    def of(self, owner: Owner) -> Quota:
        """A namespace's quota."""
        return self.namespaces.get(owner.fingerprint, NO_QUOTA)

    def is_space_short(self, owner: Owner) -> bool:
        """Whether a namespace has less than its floor, so that it may take from others."""
        floor_bytes = self.of(owner).floor_bytes
        return bool(floor_bytes) and owner.taken_bytes < floor_bytes

    def is_salt_short(self, number: int) -> bool:
        """The same of an account."""
        if not number:
            return False
        account = self.accounts.by_number[number]
        return account.taken_bytes < account.floor_bytes

    def may_give(self, extent: Extent, is_own: bool = False) -> bool:
        """Whether an extent may be emptied: its namespace is left its floor without it.

        Nor does it hold anything of a salt that has no slot of it above its own; that costs a look
        at every slot, where such a salt has anything in its namespace.

        Args:
            extent: which.
            is_own: its namespace's own limit takes it, against which its floor is no help.
        """
        if not is_own and not self.leaves_floor(extent):
            return False
        full = self.full_salts(extent)
        return full is None or not holds_any(extent, full)

    def leaves_floor(self, extent: Extent) -> bool:
        """Whether an extent's namespace is left its floor without it."""
        owner = extent.owner
        floor_bytes = self.of(owner).floor_bytes
        held_bytes = extent.num_held * extent.geometry.slot_bytes
        return not floor_bytes or owner.held_bytes - held_bytes >= floor_bytes

    def full_salts(self, extent: Extent) -> NDArray[np.bool_] | None:
        """Accounts that hold something of a namespace, and cannot lose a slot of an extent.

        Args:
            extent: of which namespace, and how large a slot.

        Returns:
            bool[256], by number; None for none. The same for all extents of a shard.
        """
        name, slot_bytes = extent.owner.fingerprint, extent.geometry.slot_bytes
        full = [
            account.number
            for account in self.accounts.by_number.values()
            if account.floor_bytes
            and name in account.held_in
            and account.held_bytes - slot_bytes < account.floor_bytes
        ]
        if not full:
            return None
        table = np.zeros(MAX_ACCOUNTS + 1, np.bool_)
        table[full] = True
        return table

    def may_lose(self, owner: Owner, node: int, is_own: bool = False) -> bool:
        """Whether a leaf may be dropped for others.

        Args:
            owner: its namespace.
            node: which.
            is_own: its namespace's own limit has it dropped, against which its floor is no help.
        """
        if not self.namespaces and not self.accounts.by_number:
            return True
        num_bytes = node_bytes(owner, owner.index, node)
        floor_bytes = 0 if is_own else self.of(owner).floor_bytes
        if floor_bytes and owner.held_bytes - num_bytes < floor_bytes:
            return False
        number = owner.index.account[node]
        if not number:
            return True
        account = self.accounts.by_number[number]
        return account.held_bytes - num_bytes >= account.floor_bytes

    def salt_room(self, number: int, slot_bytes: int, count: int) -> int:
        """Of some slots, how many an account may take before it is at its limit.

        Args:
            number: of the account, or COMMON.
            slot_bytes: of each.
            count: wanted.
        """
        if not number:
            return count
        account = self.accounts.by_number[number]
        if not account.limit_bytes:
            return count
        return max(0, min(count, (account.limit_bytes - account.taken_bytes) // slot_bytes))

    def space_room(self, owner: Owner) -> int | None:
        """Bytes of extents that a namespace may have more, below 0 above its limit; None for any.

        Extents are counted as a whole, so that what is held is less than the limit.
        """
        limit_bytes = self.of(owner).limit_bytes
        return limit_bytes - owner.file_bytes if limit_bytes else None

    def excess_bytes(self, number: int) -> int:
        """Bytes that an account holds above its limit."""
        account = self.accounts.by_number[number]
        return max(0, account.held_bytes - account.limit_bytes) if account.limit_bytes else 0


def holds_any(extent: Extent, accounts: NDArray[np.bool_]) -> bool:
    """Whether an extent holds a chunk of one of some accounts; some 30 µs for 16384 slots.

    Args:
        extent: which.
        accounts: bool[256], by number.
    """
    owner, slots = extent.owner, extent.owner.index.slots
    account_of = np.asarray(owner.index.account)
    end = extent.base + extent.geometry.num_slots
    for begin in range(extent.base, end, LOOK_SLOTS):
        run = slice(begin, min(end, begin + LOOK_SLOTS))
        # Slots without a node, and nodes of an index that is gone, are looked up anywhere, and
        # masked: that is quicker than to leave them out.
        found = accounts.take(account_of.take(slots.node[run], mode="wrap"))
        found &= slots.state[run] == HELD
        if owner.cleared_generation:
            found &= slots.generation[run] > owner.cleared_generation
        if found.any():
            return True
    return False
