"""What QUOTAS carries: whose quota, how many bytes, and how many are held now.

Purpose: a tenant is a namespace, or all requests with one cache salt. Its floor is what no other
tenant's stores take from it, in L1 or in one lower tier, its limit what it never exceeds there. A
salt is named by a digest, never by itself. Must not know: how quotas are kept. Runs in: every
process.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from protocol import limits
from protocol.layout import Bytes16

Size = Annotated[int, Meta(ge=0, le=limits.MAX_U63)]
TierName = Annotated[str, Meta(max_length=limits.MAX_STATUS_CHARS)]

MAX_QUOTAS: Final = 128
"""Most quotas at a time, in L1 and lower tiers together."""


class TenantKind(IntEnum):
    """What the 16 bytes of a tenant are."""

    NAMESPACE = 0
    SALT = 1


class QuotaChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tenant's quota from now on.

    Attributes:
        kind: what ``tenant`` is.
        tenant: a namespace's fingerprint, or the digest of a salt.
        floor_bytes: what other tenants' stores leave it; 0 for nothing.
        limit_bytes: most that it may hold, 0 for no limit. Both 0 take the quota back.
        tier: the lower tier in which it holds; empty for L1.
    """

    kind: TenantKind
    tenant: Bytes16
    floor_bytes: Size
    limit_bytes: Size = 0
    tier: TierName = ""


class QuotaRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One tenant's quota and what it holds.

    Attributes:
        kind: what ``tenant`` is.
        tenant: a namespace's fingerprint, or the digest of a salt.
        floor_bytes: what other tenants' stores leave it.
        limit_bytes: most that it may hold, 0 for no limit.
        held_bytes: slots' bytes of its published chunks in L1, now; in a lower tier as of its last
            look.
        tier_bytes: of a quota of L1: what its tenant takes in each tier that counts it, as of its
            last look.
        tier: the lower tier in which the quota holds; empty for L1.
    """

    kind: TenantKind
    tenant: Bytes16
    floor_bytes: Size
    limit_bytes: Size
    held_bytes: Size
    tier_bytes: Annotated[dict[TierName, Size], Meta(max_length=8)] = {}
    tier: TierName = ""
