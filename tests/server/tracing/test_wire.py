"""What the loop tells of a message fits one datagram and comes out as it went in."""

from __future__ import annotations

import msgspec
import pytest

from protocol.limits import MAX_TRACEPARENT_CHARS, MAX_U32, MAX_U63
from server.tracing.wire import MAX_BYTES, Record, pack, unpack

LARGEST = Record(
    "QUERY_PREFETCH_STATUS",
    MAX_U32,
    MAX_U63,
    "f" * MAX_TRACEPARENT_CHARS,
    MAX_U63,
    MAX_U63,
    b"\xff" * 16,
    b"\xff" * 16,
    MAX_U32,
    "DEADLINE_EXCEEDED",
    {"ready": MAX_U32, "pending": MAX_U32},
    "MISSING_PARENT",
)


def test_the_largest_fits() -> None:
    assert len(pack(LARGEST)) < MAX_BYTES // 2
    assert unpack(pack(LARGEST)) == LARGEST


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x91\x00", bytes(MAX_BYTES)])
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        unpack(data)
