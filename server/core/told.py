"""Replies as the shell sends them, and what it may say of one in a log or a trace.

Purpose: most replies are sent and forgotten. Of one that refuses, that came to less than was asked,
or that is traced, it is also told whom and what it was about; nothing in it is a token, a salt or
a key. Must not know: logs, spans. Runs in: the loop thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NewType

from protocol.errors import KvkeepError
from protocol.ids import ID_BYTES
from protocol.messages import Body, Request

PeerId = NewType("PeerId", bytes)
"""Routing id of one ZMQ connection, given by the server's socket."""


class Told(NamedTuple):
    """What one reply was about.

    Attributes:
        op: operation's number, 0 for unknown.
        seq: the message's number on its connection.
        request: the engine's number of its request; -1 where the message names none.
        engine: instance of who asked; empty for a stranger.
        fingerprint: of the namespace; empty for unknown.
        error: that was answered, or None.
        answer: that was given instead.
        chunks: that the message named.
        traceparent: as the message brought it; empty where it is not to be traced.
    """

    op: int
    seq: int
    request: int = -1
    engine: bytes = b""
    fingerprint: bytes = b""
    error: KvkeepError | None = None
    answer: Body | None = None
    chunks: int = 0
    traceparent: str = ""


class SendReply(NamedTuple):
    """Send one frame to a ZMQ peer, without blocking; a tuple, as there are so many.

    Attributes:
        peer, frame: whom, and the reply.
        op: which operation it answers.
        begun_ns: when the request came; 0 for what was refused before.
        told: what it was about, where that is to be told.
        seq, body: number and content of the request that it answers, for the case that sending
            shows how long that took; None for one that could not be read.
    """

    peer: PeerId
    frame: bytes
    op: int = 0
    begun_ns: int = 0
    told: Told | None = None
    seq: int = 0
    body: Request | None = None


def request_of(body: Request | None) -> int:
    """The engine's number of the request that a message is about; -1 for none."""
    number: Any = getattr(body, "request", -1)
    return number if isinstance(number, int) else -1


def chunks_of(body: Request | None) -> int:
    """Chunks that a message names."""
    keys: Any = getattr(body, "keys", None)
    if isinstance(keys, bytes):
        return len(keys) // ID_BYTES
    count: Any = getattr(body, "count", 0)
    return count if isinstance(count, int) else 0
