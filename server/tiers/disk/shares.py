"""Who has how much of a slab, and what quotas keep for whom.

Purpose: values of one namespace and one salt form a group, a small number that each slot carries;
sums by group, namespace and salt are exact at every moment. A tenant is a namespace or a salt: at
its floor it loses nothing to others, at its limit its own make room. Must not know: slots, files,
which value is older. Runs in: the porter; the catalog's lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES
from server.core.tiers.parts import MAX_SHARES, Share
from server.tiers.disk.plan import NAME_BYTES

UNKNOWN = 0
"""Group of a slot of which nobody said whose it is."""

Tenant = tuple[bool, bytes]
"""Whether it is a salt, and the 16 bytes that name it."""


class Whose(NamedTuple):
    """Whose a value is.

    Attributes:
        space: fingerprint of the namespace, or empty.
        salt: digest of the salt under which it was stored first, or empty.
    """

    space: bytes
    salt: bytes = b""

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """Both, as far as there are any."""
        both = (False, self.space), (True, self.salt)
        return tuple(one for one in both if one[1])


NOBODY = Whose(b"")


class Shares:
    """Bytes of slots by group and tenant, and the quotas of tenants.

    Attributes:
        whose: of each group, by number.
        bytes_of: of values, by tenant; none without any.
        floors: what others leave a tenant, in bytes.
        limits: most that a tenant may have, in bytes.
    """

    def __init__(self) -> None:
        self.whose: list[Whose] = [NOBODY]
        self.bytes_of: dict[Tenant, int] = {}
        self.floors: dict[Tenant, int] = {}
        self.limits: dict[Tenant, int] = {}
        self._numbers: dict[Whose, int] = {}
        self._uses: list[int] = [0]
        self._free: list[int] = []
        self._groups: dict[Tenant, set[int]] = {}
        self._tenants: list[tuple[Tenant, ...]] = [()]
        #: Bytes that are being written, of groups for which anything is.
        self._writing: dict[int, int] = {}
        #: Bytes of values that were chosen to go and are still counted, by tenant.
        self._leaving: dict[Tenant, int] = {}

    # --- counting -------------------------------------------------------------------------

    def number(self, whose: Whose) -> int:
        """The group of a namespace and a salt, a new one if need be.

        One of which nothing is counted or reserved may be another's after the next call.
        """
        number = self._numbers.get(whose)
        if number is None:
            if self._free:
                number = self._free.pop()
                self.whose[number], self._uses[number] = whose, 0
                self._tenants[number] = whose.tenants
            else:
                number = len(self.whose)
                self.whose.append(whose)
                self._uses.append(0)
                self._tenants.append(whose.tenants)
            self._numbers[whose] = number
            for tenant in whose.tenants:
                self._groups.setdefault(tenant, set()).add(number)
        return number

    def numbers(self, names: NDArray[np.uint8], salts: NDArray[np.uint8]) -> NDArray[np.uint32]:
        """Groups of many values at once, at the start.

        Args:
            names: uint8[n, NAME_BYTES].
            salts: uint8[n, ID_BYTES], zeros for none.
        """
        both = np.concatenate([names[:, :ID_BYTES], salts], axis=1)
        rows = np.ascontiguousarray(both).view(f"V{2 * ID_BYTES}").ravel()
        found: dict[bytes, int] = {}
        for one in set(rows.tolist()):
            salt = one[ID_BYTES:]
            found[one] = self.number(Whose(one[:ID_BYTES], salt if any(salt) else b""))
        return np.fromiter((found[one] for one in rows.tolist()), np.uint32, len(rows))

    def count(self, number: int, num_values: int, num_bytes: int) -> None:
        """Counts values of a group that came, or, below 0, went."""
        sums = self.bytes_of
        for tenant in self._tenants[number]:
            left = sums.get(tenant, 0) + num_bytes
            if left:
                sums[tenant] = left
            else:
                sums.pop(tenant, None)
        self._use(number, num_values)

    def reserve(self, number: int, num_bytes: int) -> None:
        """Counts a slot that is being written for a group, or, below 0, no more."""
        left = self._writing.get(number, 0) + num_bytes
        if left:
            self._writing[number] = left
        else:
            del self._writing[number]
        self._use(number, 1 if num_bytes > 0 else -1)

    def leave(self, whose: Whose, num_bytes: int) -> None:
        """Counts a value that was chosen to go, or, below 0, no more: it went, or it stays.

        Who chooses another one meanwhile must not count on the same bytes above a floor.
        """
        for tenant in whose.tenants:
            left = self._leaving.get(tenant, 0) + num_bytes
            if left:
                self._leaving[tenant] = left
            else:
                del self._leaving[tenant]

    def _use(self, number: int, count: int) -> None:
        """A group of which nothing is left gives its number back: salts come without end."""
        self._uses[number] += count
        if not self._uses[number] and number != UNKNOWN:
            gone = self.whose[number]
            del self._numbers[gone]
            for tenant in gone.tenants:
                self._groups[tenant].discard(number)
                if not self._groups[tenant]:
                    del self._groups[tenant]
            self._free.append(number)

    def spaces(self) -> tuple[tuple[bytes, int], ...]:
        """Namespaces and their bytes, the fullest first."""
        found = [(name, size) for (is_salt, name), size in self.bytes_of.items() if not is_salt]
        return tuple(nlargest(MAX_SHARES, found, key=lambda one: one[1]))

    def salts(self) -> tuple[tuple[bytes, int], ...]:
        """Salts with a quota, and their bytes."""
        named = {*self.floors, *self.limits}
        return tuple(
            (name, self.bytes_of.get((True, name), 0)) for is_salt, name in named if is_salt
        )

    # --- quotas ---------------------------------------------------------------------------

    def set_quotas(self, quotas: Iterable[Share]) -> None:
        """Sets all quotas anew."""
        rows = [((one.is_salt, one.tenant), one) for one in quotas]
        self.floors = {tenant: one.floor_bytes for tenant, one in rows if one.floor_bytes}
        self.limits = {tenant: one.limit_bytes for tenant, one in rows if one.limit_bytes}

    def guarded_for(self, taker: Whose) -> tuple[Tenant, ...]:
        """Those of a taker's tenants whose floors do not hold against itself."""
        return tuple(one for one in taker.tenants if one in self.floors) if self.floors else ()

    def over(self, taker: Whose, num_bytes: int) -> Tenant | None:
        """A tenant that has no room below its limit for one more value of a taker's."""
        for tenant in taker.tenants if self.limits else ():
            if tenant not in self.limits:
                continue
            taken = self.bytes_of.get(tenant, 0) + num_bytes
            for number, size in self._writing.items():
                taken += size * (tenant in self._tenants[number])
            if taken > self.limits[tenant]:
                return tenant
        return None

    def excess(self) -> list[Tenant]:
        """Tenants above their limit."""
        return [one for one, most in self.limits.items() if self.bytes_of.get(one, 0) > most]

    def may_lose(self, number: int, num_bytes: int, taker: Whose) -> bool:
        """Whether a group may lose so many bytes for a taker: its tenants are left their floors."""
        return not self.floors or all(
            self.spare_bytes(tenant) >= num_bytes
            for tenant in self._tenants[number]
            if tenant in self.floors and tenant not in taker.tenants
        )

    def may_lose_all(self, groups: NDArray[np.uint32], slot_bytes: int, taker: Whose) -> bool:
        """The same of several values at once.

        Args:
            groups: uint32[n], of the values.
            slot_bytes: of each.
            taker: who wants the room.
        """
        if not self.floors:
            return True
        lost: dict[Tenant, int] = {}
        numbers, counts = np.unique(groups, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            for tenant in self._tenants[number]:
                lost[tenant] = lost.get(tenant, 0) + count * slot_bytes
        return all(
            self.spare_bytes(tenant) >= num_bytes
            for tenant, num_bytes in lost.items()
            if tenant in self.floors and tenant not in taker.tenants
        )

    def spare_bytes(self, tenant: Tenant) -> int:
        """What a tenant has above its floor, and keeps; below 0 what it lacks."""
        kept = self.bytes_of.get(tenant, 0) - self._leaving.get(tenant, 0)
        return kept - self.floors.get(tenant, 0)

    def members(self, tenant: Tenant) -> NDArray[np.bool_]:
        """Which groups are a tenant's, bool by number."""
        flags = np.zeros(len(self.whose), bool)
        flags[list(self._groups.get(tenant, ()))] = True
        return flags


def whose(name: bytes, salt: bytes = b"") -> Whose:
    """Whose a value is.

    Args:
        name: NAME_BYTES, of it.
        salt: digest of a salt, or empty.
    """
    assert len(name) == NAME_BYTES
    return Whose(name[:ID_BYTES], salt)


def alone(tenant: Tenant) -> Whose:
    """A tenant by itself, as who wants room."""
    is_salt, name = tenant
    return Whose(b"", name) if is_salt else Whose(name)
