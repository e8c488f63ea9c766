"""Quotas as people write them: whose, how much, and at most how much.

Purpose: ``namespace/<fingerprint>=20G`` or ``salt/<digest>=5G:10G``, in a lower tier
``salt/<digest>=50G@disk``, on the command line, in the environment and in the settings file. Must
not know: who keeps quotas. Runs in: the main process, at start; the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from protocol.errors import ConfigError
from protocol.quotas import MAX_QUOTAS, QuotaChange, TenantKind
from server.sizes import invalid, parse_size

KEY = "quota"
_VALID = (
    "namespace/ or salt/ and 32 hex digits, =SIZE, :LIMIT if there is one, @TIER for a lower tier"
)
_TENANT = re.compile(r"(namespace|salt)/([0-9a-f]{32})")


def tenant_name(kind: TenantKind, tenant: bytes) -> str:
    """What people call a tenant.

    Args:
        kind: what its bytes are.
        tenant: 16 bytes.
    """
    return f"{kind.name.lower()}/{tenant.hex()}"


def parse_tenant(text: str) -> tuple[TenantKind, bytes] | None:
    """The tenant of such a name, or None where it is no such name."""
    match = _TENANT.fullmatch(text.strip().lower())
    return None if match is None else (TenantKind[match[1].upper()], bytes.fromhex(match[2]))


def parse_all(texts: Iterable[str]) -> tuple[QuotaChange, ...]:
    """Reads quotas.

    Args:
        texts: of each tenant one.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    found: dict[tuple[TenantKind, bytes, str], QuotaChange] = {}
    for text in texts:
        change = _parse(text)
        name = (change.kind, change.tenant, change.tier)
        if name in found:
            raise invalid(KEY, text, "each tenant once")
        found[name] = change
    if len(found) > MAX_QUOTAS:
        raise invalid(KEY, f"{len(found)} of them", f"at most {MAX_QUOTAS}")
    return tuple(found.values())


def _parse(text: str) -> QuotaChange:
    name, equals, sizes = text.partition("=")
    tenant = parse_tenant(name)
    if tenant is None or not equals:
        raise _invalid(text)
    sizes, at, tier = sizes.partition("@")
    if at and not tier.strip():
        raise _invalid(text)
    floor, _, limit = sizes.partition(":")
    return change_of(tenant, floor, limit, tier=tier.strip())


def change_of(
    tenant: tuple[TenantKind, bytes],
    floor: str,
    limit: str,
    limit_key: str = KEY,
    tier: str = "",
) -> QuotaChange:
    """A quota of sizes as people write them.

    Args:
        tenant: whose.
        floor: what others leave it.
        limit: most that it may have, or empty for no limit.
        limit_key: what the limit was given as, for the error.
        tier: the lower tier in which it holds; empty for L1.

    Raises:
        ConfigError: INVALID_CONFIG: no sizes, or a limit below the floor.
    """
    floor_bytes = parse_size(KEY, floor)
    limit_bytes = parse_size(limit_key, limit) if limit.strip() else 0
    if limit.strip() and limit_bytes < max(1, floor_bytes):
        valid = f"a limit above 0 that is no less than the floor, {floor}"
        raise invalid(limit_key, limit, valid)
    return QuotaChange(
        kind=tenant[0],
        tenant=tenant[1],
        floor_bytes=floor_bytes,
        limit_bytes=limit_bytes,
        tier=tier,
    )


def _invalid(text: str) -> ConfigError:
    return invalid(KEY, text, _VALID)
