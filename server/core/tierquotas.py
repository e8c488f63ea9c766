"""Quotas of lower tiers: what is set, and that each tier knows it before anything is written there.

Purpose: the tier itself counts and evicts; here stands what it is told, anew whenever it may be
asked again. Must not know: how a tier keeps to it, L1. Runs in: the loop thread.
"""

from __future__ import annotations

from protocol.errors import ErrorCode, RequestError
from protocol.quotas import QuotaChange, QuotaRow, TenantKind
from server.core.clock import Timers
from server.core.config import SECOND_NS
from server.core.tiers.parts import Share, pack_quotas
from server.core.tiers.tier import Tier
from server.core.tiers.tiers import Tiers
from server.sizes import exact_size

AGAIN_NS = SECOND_NS
"""After how long a tier is told again that could not take what it was told."""

Key = tuple[TenantKind, bytes]


class TierQuotas:
    """What is set for each tier.

    Args:
        tiers: that are told.
        timers: for another try.
    """

    def __init__(self, tiers: Tiers, timers: Timers) -> None:
        self._tiers = tiers
        self._timers = timers
        self._set: dict[str, dict[Key, QuotaChange]] = {tier.name: {} for tier in tiers.tiers}
        self._timer: dict[str, int] = {}
        #: Tiers that were told of any quota: they may keep to what was taken back meanwhile.
        self._told: set[str] = set()
        # Ahead of all else that is told of a tier that opened, and that may write to it.
        tiers.opened.insert(0, self._tell_first)

    def check(self, change: QuotaChange) -> None:
        """Looks whether a change can be.

        Raises:
            RequestError: INVALID_ARGUMENT.
        """
        tier = self._tier(change.tier)
        if not change.floor_bytes and not change.limit_bytes:
            return
        if not tier.knows_tenants:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"the tier {tier.name} keeps no quotas: a disk does, and a store keeps limits "
                "where its URL has ledger=/a/folder of this server's own",
            )
        if change.floor_bytes and tier.has_ledger:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"the tier {tier.name} keeps limits and no floors, for others write there, and "
                "most stores evict by themselves: give each of the others a limit, so that all fit "
                "together",
            )
        others = [one for key, one in self._set[tier.name].items() if key != _key(change)]
        left_bytes = tier.shared_bytes - sum(one.floor_bytes for one in others)
        if change.floor_bytes > left_bytes:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"floors in the tier {tier.name} are at most {exact_size(tier.shared_bytes)}, 7/8 "
                f"of its size: {exact_size(max(0, left_bytes))} are left",
                left_bytes=max(0, left_bytes),
            )

    def change(self, change: QuotaChange) -> None:
        """Sets a quota that was checked, or takes it back, and tells the tier."""
        tier = self._tier(change.tier)
        mine = self._set[tier.name]
        mine.pop(_key(change), None)
        if change.floor_bytes or change.limit_bytes:
            mine[_key(change)] = change
        self._tell(tier)

    def changes(self) -> list[QuotaChange]:
        """All that is set, as changes that would set it anew."""
        return [one for mine in self._set.values() for one in mine.values()]

    def rows(self) -> list[QuotaRow]:
        """All that is set, and what each tenant has there as of the tier's last look."""
        return [
            QuotaRow(
                kind=one.kind,
                tenant=one.tenant,
                floor_bytes=one.floor_bytes,
                limit_bytes=one.limit_bytes,
                held_bytes=held(tier, one.kind, one.tenant) or 0,
                tier=tier.name,
            )
            for tier in self._tiers.tiers
            for one in self._set[tier.name].values()
        ]

    def _tier(self, name: str) -> Tier:
        for tier in self._tiers.tiers:
            if tier.name == name:
                return tier
        there = ", ".join(tier.name for tier in self._tiers.tiers) or "none"
        raise RequestError(
            ErrorCode.INVALID_ARGUMENT, f"there is no lower tier {name[:40]!r}; there are: {there}"
        )

    def _tell_first(self, tier: Tier) -> None:
        """A porter knows of no quotas when it begins, and one that was left alone former ones."""
        if self._set[tier.name] or tier.name in self._told:
            self._tell(tier)

    def _tell(self, tier: Tier) -> None:
        quotas = [
            Share(one.kind is TenantKind.SALT, one.tenant, one.floor_bytes, one.limit_bytes)
            for one in self._set[tier.name].values()
        ]

        def over(statuses: bytes | None, _: int) -> None:
            if statuses is None and tier.is_open and not self._timer.get(tier.name):
                at_ns = self._timers.clock.now_ns + AGAIN_NS
                self._timer[tier.name] = self._timers.at(at_ns, lambda: self._again(tier))

        if quotas:
            self._told.add(tier.name)
        tier.allot(pack_quotas(quotas), over)

    def _again(self, tier: Tier) -> None:
        self._timer.pop(tier.name, None)
        self._tell(tier)


def held(tier: Tier, kind: TenantKind, tenant: bytes) -> int | None:
    """What a tenant has in a tier, None where nobody counts it."""
    return (tier.salts if kind is TenantKind.SALT else tier.shares).get(tenant)


def _key(change: QuotaChange) -> Key:
    return change.kind, change.tenant
