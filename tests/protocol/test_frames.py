"""The envelope: what comes back, what is refused, and that every refusal can be sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import codec, frames, limits, messages
from protocol.errors import ErrorCode, ReplyMalformedError, RequestError
from protocol.messages import Op

EPOCH = bytes(range(16))
ARENA = bytes(range(16, 32))
GOOD: list[Any] = [int(Op.PING), 1, EPOCH, ARENA, 0, {}]


def frame(*changes: tuple[int, Any]) -> bytes:
    parts = list(GOOD)
    for at, value in changes:
        parts[at] = value
    return codec.bytes_from_struct(parts)


def test_an_envelope_comes_back_whole() -> None:
    body = messages.Lookup(session=1, request=2, start=3, keys=b"k" * 32)
    envelope = frames.unpack_request(frames.pack_request(body, 5, EPOCH, ARENA, 6))
    assert (envelope.op, envelope.seq, envelope.deadline_ns) == (Op.LOOKUP, 5, 6)
    assert (envelope.epoch, envelope.arena) == (EPOCH, ARENA)
    assert frames.request_body(envelope) == body


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, -1),
        (0, 1 << 32),
        (0, "1"),
        (0, True),
        (1, -1),
        (1, 1 << 32),
        (1, 1.0),
        (2, bytes(17)),
        (2, "0123456789abcdef"),
        (3, bytes(17)),
        (3, None),
        (4, -1),
        (4, 1 << 63),
        (4, None),
        (5, []),
        (5, None),
        (5, {1: 1}),
        (5, {b"a": 1}),
    ],
)
def test_envelopes_that_are_none(at: int, value: Any) -> None:
    parts: list[Any] = list(GOOD)
    parts[at] = value
    with pytest.raises(RequestError) as caught:
        frames.unpack_request(codec.bytes_from_struct(parts))
    assert caught.value.code is ErrorCode.MALFORMED


@pytest.mark.parametrize("parts", [GOOD[:5], [*GOOD, 0], [], {}, 1, dict(enumerate("abcdef"))])
def test_an_envelope_is_an_array_of_six(parts: Any) -> None:
    with pytest.raises(RequestError):
        frames.unpack_request(codec.bytes_from_struct(parts))


@pytest.mark.parametrize("op", [0, 7, 99, limits.MAX_U32])
def test_unknown_operations_are_named(op: int) -> None:
    with pytest.raises(RequestError, match=f"operation {op} ") as caught:
        frames.request_body(frames.unpack_request(frame((0, op))))
    assert caught.value.code is ErrorCode.UNKNOWN_OPERATION
    assert caught.value.detail == {"op": op}


@given(st.integers(0, limits.MAX_U32), st.integers(0, limits.MAX_U32), st.sampled_from(ErrorCode))
def test_errors_travel(op: int, seq: int, code: ErrorCode) -> None:
    error = RequestError(code, "what is wrong", page=-1, side="/run/x.side")
    reply = frames.unpack_reply(frames.pack_error(op, seq, error))
    assert (reply.op, reply.seq, reply.body) == (op, seq, None)
    assert reply.error is not None
    assert (reply.error.code, reply.error.message) == (code, "what is wrong")
    assert reply.error.detail == {"page": -1, "side": "/run/x.side"}
    assert reply.error.retryable is error.retryable


@pytest.mark.parametrize(
    "error",
    [
        RequestError(ErrorCode.INTERNAL, "x" * 100_000),
        RequestError(ErrorCode.INTERNAL, "\ud800" * 1000),
        RequestError(ErrorCode.INTERNAL, "\U0001f600" * 1000),
        RequestError(ErrorCode.INTERNAL, "x", **{f"f{n}": n for n in range(100)}),
        RequestError(ErrorCode.INTERNAL, "x", path="\udcff" * 1000, big=1 << 80, flag=True),
        RequestError(ErrorCode.INTERNAL, "x", other=object()),  # type: ignore[arg-type]
        RequestError(ErrorCode.INTERNAL, "x", **{"long" * 1000: 1}),
    ],
)
def test_whatever_an_error_holds_it_can_be_sent_and_read(error: RequestError) -> None:
    reply = frames.unpack_reply(frames.pack_error(1, 2, error))
    assert reply.error is not None
    assert reply.error.code is ErrorCode.INTERNAL


def test_an_error_of_a_newer_server_keeps_its_word_on_retrying() -> None:
    body = {"message": "new", "retryable": True, "detail": {}}
    reply = frames.unpack_reply(codec.bytes_from_struct([10, 1, 999, body]))
    assert reply.error is not None
    assert reply.error.code is ErrorCode.INTERNAL
    assert reply.error.retryable


@pytest.mark.parametrize(
    "parts",
    [
        [10, 1, 0, {"ready": 1}],
        [10, 1, 0, {"lease": b"", "ready": 1, "more": 1}],
        [10, 1, 0],
        [10, 1, 0, {}, 1],
        [99, 1, 0, {}],
        [10, 1, 400, {"message": "x"}],
        [10, 1, 400, {"message": "x", "retryable": 1}],
        [10, -1, 0, {}],
        "text",
    ],
)
def test_replies_that_are_none(parts: Any) -> None:
    with pytest.raises(ReplyMalformedError, match="malformed reply"):
        frames.unpack_reply(codec.bytes_from_struct(parts))


@given(st.binary(max_size=64))
def test_random_bytes_are_no_reply(data: bytes) -> None:
    with pytest.raises(ReplyMalformedError):
        frames.unpack_reply(data)
