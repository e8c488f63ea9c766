"""What a later minor version may say to this one, and this one to an older: as the page has it."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import codec, frames, side
from protocol.errors import ErrorCode, ReplyError, ReplyMalformedError, RequestError
from protocol.messages import (
    MAX_STOP_REASON,
    CommitReply,
    HelloReply,
    Op,
    StopReason,
    StoreReply,
)
from tests.repository import tree

PAGE = tree.text("docs/protocol.md")
HELLO: dict[str, Any] = {
    "epoch": b"E" * 16,
    "arena": b"A" * 16,
    "now_ns": 1,
    "major": 1,
    "minor": 0,
    "max_blocks": 1,
    "max_frame_bytes": 1 << 20,
    "heartbeat_s": 1.0,
}


def reply(op: Op, body: dict[str, Any], code: int = 0) -> frames.Reply:
    return frames.unpack_reply(codec.bytes_from_struct((int(op), 1, code, body)))


def test_abilities_that_are_not_known_are_left_alone() -> None:
    found = reply(Op.HELLO, {**HELLO, "capabilities": ["of-tomorrow", "stats"]}).body
    assert isinstance(found, HelloReply)
    assert found.capabilities == ("of-tomorrow", "stats")


@pytest.mark.parametrize("number", [6, 77, MAX_STOP_REASON])
def test_a_stop_reason_that_is_not_known_is_some_reason(number: int) -> None:
    stored = reply(Op.STORE, {"held": 1, "copied": 2, "stop": number}).body
    committed = reply(Op.COMMIT, {"published": 1, "stop": number}).body
    assert isinstance(stored, StoreReply)
    assert isinstance(committed, CommitReply)
    for stop in (stored.stop, committed.stop):
        assert (stop, stop.name) == (number, "OTHER")  # counters that are named by it stay few
        assert stop not in list(StopReason)
    assert f"does not know, up to {MAX_STOP_REASON}, as" in PAGE


@pytest.mark.parametrize("number", [-1, MAX_STOP_REASON + 1, True, "NONE"])
def test_what_is_no_stop_reason_at_all_is_malformed(number: object) -> None:
    with pytest.raises(ReplyMalformedError):
        reply(Op.COMMIT, {"published": 1, "stop": number})


@pytest.mark.parametrize("retryable", [False, True])
def test_an_error_that_is_not_known_says_itself_whether_to_try_again(retryable: bool) -> None:
    error = reply(Op.LOOKUP, {"message": "new", "retryable": retryable}, 4242).error
    assert isinstance(error, ReplyError)
    assert error.retryable is retryable
    assert error.message == "new"


def test_fields_come_only_to_who_said_their_minor() -> None:
    """Nobody skips what it does not know: a field that is not of the minor in use is refused."""
    with pytest.raises(ReplyMalformedError, match="unknown field `tomorrow`"):
        reply(Op.COMMIT, {"published": 1, "tomorrow": 1})
    frame = codec.bytes_from_struct((int(Op.PING), 1, b"", b"", 0, {"tomorrow": 1}))
    with pytest.raises(RequestError, match="unknown field `tomorrow`"):
        frames.request_body(frames.unpack_request(frame))
    hello = codec.bytes_from_struct(
        {"type": "hello", "major": 1, "minor": 9, "instance": b"i" * 16, "tomorrow": 1}
    )
    with pytest.raises(RequestError, match="unknown field `tomorrow`"):
        side.unpack_from_client(hello)
    assert "reply fields (sent only to clients that said that minor)" in PAGE


def test_an_operation_that_is_not_known_is_named_in_the_refusal() -> None:
    frame = codec.bytes_from_struct((4001, 1, b"", b"", 0, {}))
    with pytest.raises(RequestError) as refused:
        frames.request_body(frames.unpack_request(frame))
    assert refused.value.code is ErrorCode.UNKNOWN_OPERATION
    assert refused.value.detail == {"op": 4001}
