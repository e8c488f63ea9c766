"""The decoders of ``protocol`` under changed messages.

Oracle: a typed error, or a value that the protocol's page allows and that is the same after being
encoded and decoded again, in bounded time. Knows nothing of a server. Runs in the fuzzer's process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from protocol import codec, frames, limits, side
from protocol.errors import ReplyMalformedError, RequestError
from protocol.namespace import Namespace, fingerprint
from tests.fuzz import spec, wire
from tests.fuzz.finding import Finding, require

SLOW_S = 0.1
"""No message may take longer: a second of such messages would stop the loop."""

PAGE = spec.Spec()


def _request(data: bytes) -> Any:
    envelope = frames.unpack_request(data)
    return envelope, frames.request_body(envelope)


def _side_client(data: bytes) -> Any:
    return side.unpack_from_client(data)


def _namespace(data: bytes) -> Any:
    return codec.struct_from_plain(codec.plain_from_bytes(data), Namespace)


DECODERS: dict[str, tuple[Callable[[bytes], Any], type[Exception]]] = {
    "request": (_request, RequestError),
    "reply": (frames.unpack_reply, ReplyMalformedError),
    "client": (_side_client, RequestError),
    "server": (side.unpack_from_server, RequestError),
    "namespace": (_namespace, RequestError),
}


def again(target: str, value: Any) -> bytes:
    """Encodes what was decoded."""
    if target == "request":
        envelope, body = value
        return frames.pack_request(
            body, envelope.seq, envelope.epoch, envelope.arena, envelope.deadline_ns
        )
    if target == "reply":
        if value.error is None:
            return frames.pack_reply(value.op, value.seq, value.body)
        return frames.pack_error(value.op, value.seq, value.error)
    return codec.bytes_from_struct(value)


def same(target: str, one: Any, two: Any) -> bool:
    """Whether two decoded values say the same."""
    if target == "request":
        return bool(one[1] == two[1] and one[0].seq == two[0].seq and one[0].epoch == two[0].epoch)
    if target == "reply" and one.error is not None:
        # Numbers this side does not know become INTERNAL, and details are told anew.
        return two.error is not None and one.error.code == two.error.code
    return bool(one == two)


def check_accepted(target: str, data: bytes, value: Any) -> None:
    """What must hold of a message that was let through.

    Raises:
        Finding: it does not.
    """
    most = limits.MAX_SIDE_BYTES if target in ("client", "server") else limits.MAX_FRAME_BYTES
    wrong = spec.raw_fault(data, most)
    require(not wrong, f"let through what the page forbids: {wrong}")
    plain = wire.decode(data)
    name, body = _named(target, plain, value)
    require(spec.fits(PAGE, name, body), f"let through a field outside its range: {name}")
    decoder, _ = DECODERS[target]
    try:
        second = decoder(again(target, value))
    except Exception as error:
        raise Finding(f"its own encoding is refused: {error!r}") from error
    require(same(target, value, second), f"changed by a round trip: {value!r} to {second!r}")
    if target == "namespace":
        require(fingerprint(value) == fingerprint(second), "two fingerprints: of one namespace")


def _named(target: str, plain: Any, value: Any) -> tuple[str, Any]:
    if target == "request":
        require(type(plain) is list and len(plain) == 6, "let through an envelope: not of six")
        return type(value[1]).__name__, plain[5]
    if target == "reply":
        require(type(plain) is list and len(plain) == 4, "let through an envelope: not of four")
        return ("ErrorBody" if plain[2] else type(value.body).__name__), plain[3]
    return type(value).__name__, plain


def try_one(target: str, data: bytes, thorough: bool = True) -> bool:
    """One execution.

    Args:
        target: which decoder.
        data: the message.
        thorough: check what was let through.

    Returns:
        Whether the message was let through.

    Raises:
        Finding: an oracle is broken.
    """
    decoder, refusal = DECODERS[target]
    try:
        value = decoder(data)
    except refusal:
        return False
    except Exception as error:
        raise Finding(f"an untyped error: {type(error).__name__}: {error}") from error
    if thorough:
        check_accepted(target, data, value)
    return True


def check_time(target: str, data: bytes) -> None:
    """Whether a message that seemed slow is slow.

    Raises:
        Finding: it takes longer than ``SLOW_S`` of this thread's time, each time.
    """
    best = SLOW_S
    for _ in range(5):
        began = time.thread_time()
        try_one(target, data, thorough=False)
        best = min(best, time.thread_time() - began)
    require(best < SLOW_S, f"too slow: {best:.3f} s at best for {len(data)} bytes")
