"""The envelope around every body: one ZMQ frame per request and per reply.

Purpose: ``[op, seq, epoch, arena, deadline_ns, body]`` one way, ``[op, seq, code, body]`` the
other. Must not know: sockets, what a body does. Runs in: every process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from protocol import codec, limits
from protocol.errors import (
    ErrorCode,
    KvkeepError,
    ReplyError,
    ReplyMalformedError,
    RequestError,
    code_of,
)
from protocol.messages import (
    REPLY_TYPES,
    REQUEST_TYPES,
    Body,
    ErrorBody,
    Nanos,
    OptionalId,
    Request,
)

Seq = Annotated[int, Meta(ge=0, le=limits.MAX_U32)]


class RequestEnvelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a request frame holds.

    Attributes:
        op: operation number.
        seq: chosen by the client, comes back in the reply; unique among its outstanding requests.
        epoch: from HELLO's reply; empty in HELLO.
        arena: from HELLO's reply; empty in HELLO.
        deadline_ns: on the server's monotonic clock; 0 for none.
        body: a map.
    """

    op: Annotated[int, Meta(ge=0, le=limits.MAX_U32)]
    seq: Seq
    epoch: OptionalId
    arena: OptionalId
    deadline_ns: Nanos
    body: dict[str, Any]


class ReplyEnvelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a reply frame holds.

    Attributes:
        op: of the request.
        seq: of the request.
        code: 0, or the number of an error.
        body: a map: the operation's reply, or ErrorBody.
    """

    op: Annotated[int, Meta(ge=0, le=limits.MAX_U32)]
    seq: Seq
    code: Annotated[int, Meta(ge=0, le=limits.MAX_U32)]
    body: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """One decoded reply.

    Attributes:
        op: of the request.
        seq: of the request.
        body: the typed body, or None when ``error`` is set.
        error: what the server answered instead.
    """

    op: int
    seq: int
    body: Body | None
    error: ReplyError | None


def pack_request(
    body: Request, seq: int, epoch: bytes = b"", arena: bytes = b"", deadline_ns: int = 0
) -> bytes:
    """One request frame.

    Args:
        body: the request.
        seq: 0 <= seq < 2**32.
        epoch: 16 bytes, empty in HELLO.
        arena: 16 bytes, empty in HELLO.
        deadline_ns: on the server's clock, 0 for none.

    Returns:
        The frame.
    """
    return codec.bytes_from_struct((int(body.op), seq, epoch, arena, deadline_ns, body))


def unpack_request(frame: bytes) -> RequestEnvelope:
    """Opens a request's envelope, leaving the body plain.

    Args:
        frame: as received.

    Returns:
        The envelope; ``request_body`` types its body.

    Raises:
        RequestError: TOO_LARGE or MALFORMED; there is no seq to answer to then, so the error
            reply carries op 0 and seq 0.
    """
    return codec.struct_from_plain(codec.plain_from_bytes(frame), RequestEnvelope)


def request_body(envelope: RequestEnvelope) -> Request:
    """Types the body of a request.

    Args:
        envelope: from ``unpack_request``.

    Returns:
        The typed request.

    Raises:
        RequestError: UNKNOWN_OPERATION or MALFORMED.
    """
    kind = REQUEST_TYPES.get(envelope.op)
    if kind is None:
        raise RequestError(
            ErrorCode.UNKNOWN_OPERATION,
            f"operation {envelope.op} is not known; known are "
            f"{', '.join(str(op) for op in sorted(REQUEST_TYPES))}",
            op=envelope.op,
        )
    return codec.struct_from_plain(envelope.body, kind)


def pack_reply(op: int, seq: int, body: Body) -> bytes:
    """A reply frame.

    Args:
        op: of the request.
        seq: of the request.
        body: the operation's reply.

    Returns:
        The frame.
    """
    return codec.bytes_from_struct((op, seq, 0, body))


def pack_error(op: int, seq: int, error: KvkeepError) -> bytes:
    """A reply frame that carries an error.

    Args:
        op: of the request, 0 when it could not be read.
        seq: of the request, 0 when it could not be read.
        error: what to say.

    Returns:
        The frame.
    """
    detail = {
        _clip(name): int(value) if _fits(value) else _clip(str(value))
        for name, value in list(error.detail.items())[: limits.MAX_DETAIL_FIELDS]
    }
    body = ErrorBody(message=_clip(error.message), retryable=error.retryable, detail=detail)
    return codec.bytes_from_struct((op, seq, int(error.code), body))


def _fits(value: object) -> bool:
    return isinstance(value, int) and -limits.MAX_U63 <= value <= limits.MAX_U63


def _clip(text: str) -> str:
    return text[: limits.MAX_TEXT_CHARS].encode("utf-8", "replace").decode("utf-8")


def unpack_reply(frame: bytes) -> Reply:
    """Opens a reply.

    Args:
        frame: as received.

    Returns:
        The reply, typed by its operation.

    Raises:
        ReplyMalformedError: the frame is no reply of this protocol.
    """
    try:
        envelope = codec.struct_from_plain(codec.plain_from_bytes(frame), ReplyEnvelope)
        if envelope.code:
            said = codec.struct_from_plain(envelope.body, ErrorBody)
            error = ReplyError(code_of(envelope.code), said.message)
            error.detail = said.detail
            error.stated_retryable = said.retryable
            return Reply(envelope.op, envelope.seq, None, error)
        kind = REPLY_TYPES.get(envelope.op)
        if kind is None:
            raise RequestError(ErrorCode.UNKNOWN_OPERATION, f"reply to operation {envelope.op}")
        body = codec.struct_from_plain(envelope.body, kind)
    except RequestError as error:
        raise ReplyMalformedError(error.code, f"malformed reply: {error.message}") from error
    return Reply(envelope.op, envelope.seq, body, None)
