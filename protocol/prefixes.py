"""What STATUS tells of prefixes: those that LOOKUPs found most of late.

Purpose: a prefix is all chains with one first chunk, such as those of one system prompt. It is
named by the beginning of that chunk's key, which is too short to ask for anything with. Must not
know: how the server finds out which they are. Runs in: every process.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from protocol import limits
from protocol.layout import Bytes16

HEAD_BYTES: Final = 6
"""Of the first chunk's key: enough to tell the prefixes of a node apart."""

MAX_PREFIXES: Final = 16
"""Most that STATUS tells."""

Head = Annotated[bytes, Meta(min_length=HEAD_BYTES, max_length=HEAD_BYTES)]
Number = Annotated[int, Meta(ge=0, le=limits.MAX_U63)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class PrefixStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Chains with one first chunk, which L1 still holds.

    Attributes:
        fingerprint: of the namespace.
        head: the beginning of the first chunk's key.
        chunks: chunks from the start on that the last LOOKUP which found any of it was offered.
        hits: LOOKUPs that found it, since it is among those that are watched.
        idle_s: since the last of them.
    """

    fingerprint: Bytes16
    head: Head
    chunks: Number
    hits: Number
    idle_s: Seconds
