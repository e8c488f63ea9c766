"""Values on their way between L1 and a tier, as the core names them.

Must not know: how they are carried. Runs in: the loop thread; the words are the porter's, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

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
_SHARES = struct.Struct("<I")
_QUOTA = struct.Struct("<?16sQQ")
_NAME = struct.Struct("<16s16sI")

MAX_NAMES = 448
"""Values of one answer that names them."""

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
    encrypted where they must be. OVER is said of a put: its tenant is at its limit, or others'
    floors leave it no room.
    """

    OK = 0
    ABSENT = 1
    CORRUPT = 2
    NO_ROOM = 3
    ERROR = 4
    LOCKED = 5
    OVER = 6


class Share(NamedTuple):
    """A tenant's quota in one tier.

    Attributes:
        is_salt: what ``tenant`` is: a salt's digest, or else a namespace's fingerprint.
        tenant: 16 bytes.
        floor_bytes: what others leave it.
        limit_bytes: most that it may have, 0 for no limit.
    """

    is_salt: bool
    tenant: bytes
    floor_bytes: int
    limit_bytes: int


def pack_quotas(quotas: Iterable[Share]) -> bytes:
    """Quotas of one tier in one packet's tail."""
    return b"".join(_QUOTA.pack(*one) for one in quotas)


def unpack_quotas(packed: bytes) -> list[Share]:
    """What ``pack_quotas`` packed.

    Raises:
        struct.error: it is no such thing.
    """
    return [Share(*one) for one in _QUOTA.iter_unpack(packed)]


def pack_names(names: Iterable[tuple[bytes, bytes, int]]) -> bytes:
    """Fingerprint, key and shard of values, the first MAX_NAMES of them."""
    return b"".join(_NAME.pack(*one) for one in islice(names, MAX_NAMES))


def unpack_names(packed: bytes) -> list[tuple[bytes, bytes, int]]:
    """What ``pack_names`` packed; a ragged end is left out."""
    whole = len(packed) // _NAME.size * _NAME.size
    return list(_NAME.iter_unpack(packed[:whole]))


def pack_shares(
    shares: Iterable[tuple[bytes, int]], salts: Iterable[tuple[bytes, int]] = ()
) -> bytes:
    """Bytes by tenant in one packet's tail.

    Args:
        shares: of namespaces, the first MAX_SHARES of them.
        salts: of salts, likewise.
    """
    spaces = b"".join(_SHARE.pack(*one) for one in islice(shares, MAX_SHARES))
    others = b"".join(_SHARE.pack(*one) for one in islice(salts, MAX_SHARES))
    if not spaces and not others:
        return b""
    return _SHARES.pack(len(spaces) // _SHARE.size) + spaces + others


def unpack_shares(packed: bytes) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """What ``pack_shares`` packed: of namespaces and of salts; a ragged end is left out."""
    if len(packed) < _SHARES.size:
        return {}, {}
    (number,) = _SHARES.unpack_from(packed)
    whole = (len(packed) - _SHARES.size) // _SHARE.size * _SHARE.size
    rows = list(_SHARE.iter_unpack(packed[_SHARES.size : _SHARES.size + whole]))
    return dict(rows[:number]), dict(rows[number:])
