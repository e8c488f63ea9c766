"""What the loop tells the traces process of one message: one datagram of a socket pair.

Must not know: sockets, spans. Runs in: the loop thread, and the traces process.
"""

from __future__ import annotations

import msgspec

READY = "kvkeep traces: "
"""How lines of that process begin that tell its figures, as JSON."""

MAX_BYTES = 1024
"""Of one datagram; all that is in a record is bounded, and far below this together."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One message that was answered.

    Attributes:
        op: operation's name.
        seq: the message's number on its connection.
        request: the engine's number of its request; -1 for none.
        traceparent: as the message brought it, checked.
        begin_ns: when it was in the loop's hands, nanoseconds since 1970.
        end_ns: when its answer went out.
        engine: instance of who asked.
        namespace: fingerprint; empty for unknown.
        chunks: that it named.
        code: of the error that was answered; empty for none.
        figures: of the answer, by name: ``ready``, ``pending``, ``held``, ``copied``.
        stop: why a STORE covered less than was asked; empty for no reason.
    """

    op: str
    seq: int
    request: int
    traceparent: str
    begin_ns: int
    end_ns: int
    engine: bytes
    namespace: bytes
    chunks: int
    code: str = ""
    figures: dict[str, int] = {}
    stop: str = ""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Record)


def pack(record: Record) -> bytes:
    """A record as a datagram."""
    return _ENCODER.encode(record)


def unpack(data: bytes) -> Record:
    """A datagram as a record.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _DECODER.decode(data)
