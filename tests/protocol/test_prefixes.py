"""Rows of hot prefixes: a beginning of a key, never a whole one, and no more than is said."""

from __future__ import annotations

import msgspec
import pytest

from protocol.ids import ID_BYTES
from protocol.messages import StatusReply
from protocol.prefixes import HEAD_BYTES, MAX_PREFIXES, PrefixStatus

ROW = {"fingerprint": bytes(16), "head": bytes(HEAD_BYTES), "chunks": 1, "hits": 1, "idle_s": 0.0}


def test_a_row_is_read_again() -> None:
    row = msgspec.convert(ROW, PrefixStatus)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=PrefixStatus) == row


@pytest.mark.parametrize(
    "changed",
    [
        {"head": bytes(ID_BYTES)},
        {"head": b""},
        {"fingerprint": bytes(15)},
        {"hits": -1},
        {"idle_s": -1.0},
        {"key": bytes(ID_BYTES)},
    ],
)
def test_what_is_no_row_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(ROW | changed, PrefixStatus)


def test_more_than_are_said_are_refused() -> None:
    field = next(f for f in msgspec.structs.fields(StatusReply) if f.name == "prefixes")
    assert field.default == ()
    rows = [ROW] * MAX_PREFIXES
    assert len(msgspec.convert(rows, field.type)) == MAX_PREFIXES
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([*rows, ROW], field.type)
