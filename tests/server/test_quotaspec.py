"""Quotas as people write them."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from protocol.quotas import QuotaChange, TenantKind
from server.quotaspec import parse_all, parse_tenant, tenant_name

SPACE, SALT = b"\x01" * 16, b"\xfe" * 16


def test_each_form() -> None:
    texts = [f"namespace/{SPACE.hex()}=2G", f"SALT/{SALT.hex().upper()}=512M:1.5G"]
    assert parse_all(texts) == (
        QuotaChange(kind=TenantKind.NAMESPACE, tenant=SPACE, floor_bytes=2 << 30),
        QuotaChange(kind=TenantKind.SALT, tenant=SALT, floor_bytes=512 << 20, limit_bytes=3 << 29),
    )
    assert parse_all([]) == ()


def test_of_a_lower_tier() -> None:
    name = f"salt/{SALT.hex()}"
    here, there = parse_all([f"{name}=1G", f"{name}=1G:2G@disk"])
    assert (here.tier, there.tier, there.limit_bytes) == ("", "disk", 2 << 30)
    with pytest.raises(ConfigError, match="each tenant once"):
        parse_all([f"{name}=1G@disk", f"{name}=2G@disk"])


def test_a_name_reads_as_it_is_written() -> None:
    for kind in TenantKind:
        assert parse_tenant(tenant_name(kind, SALT)) == (kind, SALT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "32 hex digits"),
        (f"namespace/{SPACE.hex()}", "32 hex digits"),
        (f"user/{SPACE.hex()}=1G", "32 hex digits"),
        (f"salt/{SPACE.hex()[:30]}=1G", "32 hex digits"),
        (f"salt/{SPACE.hex()}=", "number of bytes"),
        (f"salt/{SPACE.hex()}=2G:x", "number of bytes"),
        (f"salt/{SPACE.hex()}=2G:1G", "no less than the floor"),
        (f"salt/{SPACE.hex()}=1G@", "@TIER"),
        (f"salt/{SPACE.hex()}=0:0", "no less than the floor"),
    ],
)
def test_what_is_none(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_all([text])


def test_each_tenant_once_and_not_too_many() -> None:
    text = f"salt/{SALT.hex()}=1G"
    with pytest.raises(ConfigError, match="each tenant once"):
        parse_all([text, text])
    with pytest.raises(ConfigError, match="at most 128"):
        parse_all(f"salt/{number:032x}=1" for number in range(129))
