"""Values on their way between L1 and a tier, as the core names them.

Must not know: how they are carried. Runs in: the loop thread; the words are the porter's, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from itertools import islice

import numpy as np

MAX_PARTS = 512
"""Parts of one GET or PUT."""

MAX_KEYS = 2048
"""Keys of one PROBE or DROP."""

MAX_TOUCHED = 512
"""Parts of one TOUCH."""

MAX_TEXT_BYTES = 32_768
"""Of a namespace's description."""

PAGE_CHUNKS = 512
"""Chunks, or namespaces, of one answer of a tier that lists what it has."""

MAX_LISTED = 262_144
"""Chunks of one namespace that are listed: each takes some hundred bytes meanwhile."""

MAX_SHARES = 256
"""Namespaces whose bytes a tier tells."""

_SHARE = struct.Struct("<16sQ")

PART_DTYPE = np.dtype(
    [
        ("key", "V16"),
        ("parent", "V16"),
        ("extent", "<u8"),
        ("offset", "<u8"),
        ("length", "<u4"),
        ("room", "<u4"),
        ("shard", "<u4"),
        ("heat", "<u4"),
    ]
)
"""One shard of one chunk: its key, its parent's key (zeros at a chain's start), the extent's id,
the slot's offset in the extent file, payload and slot length in bytes, the shard, how often it was
used."""


class Status(IntEnum):
    """How it went with one value; one byte of an answer.

    LOCKED is said of values that are encrypted with a key which the server does not have, or not
    encrypted where they must be.
    """

    OK = 0
    ABSENT = 1
    CORRUPT = 2
    NO_ROOM = 3
    ERROR = 4
    LOCKED = 5


def pack_shares(shares: Iterable[tuple[bytes, int]]) -> bytes:
    """Bytes by namespace in one packet's tail, the first MAX_SHARES of them."""
    return b"".join(_SHARE.pack(*one) for one in islice(shares, MAX_SHARES))


def unpack_shares(packed: bytes) -> dict[bytes, int]:
    """What ``pack_shares`` packed; a ragged end is left out."""
    whole = len(packed) // _SHARE.size * _SHARE.size
    return dict(_SHARE.iter_unpack(packed[:whole]))
