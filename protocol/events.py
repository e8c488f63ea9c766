"""What EVENTS and SNAPSHOT tell: which chunks L1 came to hold, and which it holds no more.

Purpose: the bounds of a stream that a router follows, so that it knows where a prompt's beginning
is cached. Keys and fingerprints only: no token, no salt. Must not know: who follows, how events
come about. Runs in: every process.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from protocol.ids import ID_BYTES
from protocol.layout import Bytes16
from protocol.status import ShortText

STORED: Final = "stored"
REMOVED: Final = "removed"
CLEARED: Final = "cleared"
EVENT_KINDS: Final = (STORED, REMOVED, CLEARED)

MAX_EVENTS: Final = 1024
"""Most events in one reply."""

MAX_EVENT_CHUNKS: Final = 64
"""Most chunks that one event names."""

MAX_SNAPSHOT_CHUNKS: Final = 4096
"""Most chunks in one page of a snapshot."""

EventKeys = Annotated[bytes, Meta(max_length=MAX_EVENT_CHUNKS * ID_BYTES)]
SnapshotKeys = Annotated[bytes, Meta(max_length=MAX_SNAPSHOT_CHUNKS * ID_BYTES)]
OptionalKey = Annotated[bytes, Meta(max_length=ID_BYTES)]


class KvEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One event.

    Attributes:
        kind: one of ``EVENT_KINDS``.
        fingerprint: of the namespace.
        keys: of ``stored``, consecutive chunks of one chain; of ``removed``, what continues a chunk
            before that; of ``cleared``, nothing: all of the namespace went.
        parent: of ``stored``, the key of the chunk before the first; empty at a chain's start.
    """

    kind: ShortText
    fingerprint: Bytes16
    keys: EventKeys = b""
    parent: OptionalKey = b""
