"""Quotas on the wire: bounds, and that a request without a tenant is what it was before."""

from __future__ import annotations

import msgspec
import pytest

from protocol import codec, limits
from protocol.keys import ReuseScope
from protocol.messages import REPLY_TYPES, Lookup, Op, QuotasReply, Store
from protocol.quotas import MAX_QUOTAS, QuotaChange, QuotaRow, TenantKind


def test_the_longest_answer_fits_a_frame() -> None:
    big = limits.MAX_U63
    row = QuotaRow(
        kind=TenantKind.SALT,
        tenant=b"\xff" * 16,
        floor_bytes=big,
        limit_bytes=big,
        held_bytes=big,
        tier_bytes={f"{number}".rjust(limits.MAX_STATUS_CHARS, "n"): big for number in range(8)},
    )
    reply = QuotasReply(arena_bytes=big, quotas=(row,) * MAX_QUOTAS)
    packed = codec.bytes_from_struct(reply)
    assert len(packed) < limits.MAX_FRAME_BYTES // 4
    again = codec.struct_from_plain(codec.plain_from_bytes(packed), REPLY_TYPES[Op.QUOTAS])
    assert again == reply


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": 2, "tenant": bytes(16), "floor_bytes": 1},
        {"kind": 0, "tenant": bytes(15), "floor_bytes": 1},
        {"kind": 0, "tenant": bytes(16), "floor_bytes": -1},
        {"kind": 0, "tenant": bytes(16), "floor_bytes": 1, "limit_bytes": 1 << 63},
        {"kind": 0, "tenant": bytes(16), "floor_bytes": 1, "more": 1},
    ],
)
def test_what_is_no_change_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, QuotaChange)


def test_a_request_without_a_tenant_has_no_such_field() -> None:
    look = Lookup(session=1, request=2, start=0, keys=bytes(16))
    store = Store(
        session=1, store=1, request=2, shard=0, start=0, parent=b"", keys=bytes(16), pages=bytes(4)
    )
    for body in (look, store):
        assert b"tenant" not in codec.bytes_from_struct(body)
        named = msgspec.structs.replace(body, tenant=b"t" * 16)
        assert b"tenant" in codec.bytes_from_struct(named)


def test_a_tenant_is_its_salt_alone_and_tells_it_to_nobody() -> None:
    plain = ReuseScope(cache_salt="tenant")
    assert plain.tenant().hex() == "8eab3cb7a1b07f9e6b3889ee6d5c6f16"
    assert ReuseScope(cache_salt="tenant", lora_digest=b"x").tenant() == plain.tenant()
    assert ReuseScope(cache_salt=7).tenant() != ReuseScope(cache_salt="7").tenant()
    assert plain.tenant() != plain.seed()[:16]
    assert ReuseScope().tenant() == ReuseScope(lora_digest=b"x").tenant() == b""
    assert len(ReuseScope(cache_salt="").tenant()) == 16
