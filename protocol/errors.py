"""The one taxonomy of errors: numbered for peers, typed for callers.

Purpose: each failure has a number that is never reused, says whether trying again can help, and
names what was wrong and what is valid. Must not know: sockets, logging. Runs in: every process.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class ErrorCode(IntEnum):
    """Numbers of docs/protocol.md; a number, once published, keeps its meaning for ever.

    1xx form, 2xx identity, 3xx arguments, 4xx room and time, 5xx the server's own fault.
    """

    MALFORMED = 100
    TOO_LARGE = 101
    UNKNOWN_OPERATION = 102
    VERSION_MISMATCH = 103
    UNSUPPORTED = 104

    UNAUTHENTICATED = 200
    STALE_EPOCH = 201
    WRONG_ARENA = 202
    UNKNOWN_SESSION = 203
    NOT_PERMITTED = 204
    UNWATCHABLE_PEER = 205
    NO_DESCRIPTORS = 206

    INVALID_ARGUMENT = 300
    UNKNOWN_NAMESPACE = 301
    PAGE_OUT_OF_RANGE = 302
    COUNT_MISMATCH = 303
    PAGE_SIZE_MISMATCH = 304
    POOL_INVALID = 305
    CHUNK_SIZE_INVALID = 306
    UNKNOWN_LEASE = 307
    UNKNOWN_STORE = 308
    DUPLICATE = 309
    INVALID_URL = 310
    INVALID_CONFIG = 311

    BUSY = 400
    NO_ROOM = 401
    DEADLINE_EXCEEDED = 402
    LIMIT_EXCEEDED = 403
    DRAINING = 404
    CLEARED = 405
    ENDPOINT_IN_USE = 406
    UNAVAILABLE = 407

    INTERNAL = 500
    COPY_FAILED = 501


#: Codes after which the same request may succeed later without a change by the caller.
RETRYABLE: frozenset[ErrorCode] = frozenset(
    {
        ErrorCode.BUSY,
        ErrorCode.NO_ROOM,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.DRAINING,
        ErrorCode.UNAVAILABLE,
        ErrorCode.COPY_FAILED,
    }
)

#: Codes that tell a client to say HELLO and register again: the server is another one now, or
#: has forgotten this client.
REJOIN: frozenset[ErrorCode] = frozenset(
    {
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.STALE_EPOCH,
        ErrorCode.WRONG_ARENA,
        ErrorCode.UNKNOWN_SESSION,
    }
)

Detail = Mapping[str, str | int]


class KvkeepError(Exception):
    """Base of every error kvkeep raises on purpose.

    Attributes:
        code: the number of docs/protocol.md.
        message: one line for a person: what is wrong and what is valid.
        detail: named facts (offending value, valid range) for programs.
    """

    def __init__(self, code: ErrorCode, message: str, **detail: str | int) -> None:
        """Keeps the code, the line and the named facts."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail: Detail = detail

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later, unchanged."""
        return self.code in RETRYABLE

    def __str__(self) -> str:
        """Code name and line, e.g. ``PAGE_OUT_OF_RANGE: page 12 of 0..7``."""
        return f"{self.code.name}: {self.message}"


class RequestError(KvkeepError):
    """What the peer sent is wrong; the server answers with it and goes on."""


class ReplyError(KvkeepError):
    """The server answered a request of ours with an error.

    Attributes:
        stated_retryable: what the reply said; it knows codes newer than ours.
    """

    stated_retryable: bool | None = None

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later, unchanged: the server's word counts."""
        return super().retryable if self.stated_retryable is None else self.stated_retryable


class ReplyMalformedError(KvkeepError):
    """A reply could not be decoded: the other side is not a server we can talk to."""


class UnreachableError(KvkeepError):
    """No reply in time, or no server at the endpoint."""


class ConfigError(KvkeepError):
    """A setting is wrong; names the setting, the unit and the valid range."""


def code_of(number: int) -> ErrorCode:
    """Code for a number from the wire; numbers of newer servers read as INTERNAL.

    Args:
        number: as received.

    Returns:
        The known code, or ``ErrorCode.INTERNAL``.
    """
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.INTERNAL
