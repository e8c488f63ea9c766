"""The header before every value: what it is, and how to tell that it is that.

Purpose: a tier is not believed. A value that it hands back is published only when the header names
what was asked for and the payload's hash is the header's. Must not know: engines, the index. Runs
in: the porter's worker threads; hashing lets the interpreter go.

Little-endian: ``magic 8, version u32, shard u32, fingerprint 16, key 16, parent's key 16,
payload_bytes u64, xxh3_64 of the payload u64``, zeros up to 120, ``xxh3_64 of these 120 bytes
u64``. That is version 1. In version 2 the payload is encrypted (``server.tiers.encryption``): the
payload's hash is 0, and where zeros were the header says how it is decrypted.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from server.core.tiers.parts import Status
from server.tiers.interface import HEADER_BYTES, Name, Part

MAGIC = b"kvkeepL2"
VERSION, ENCRYPTED = 1, 2
ZEROS_AT = 80
"""Where the 40 bytes begin that version 1 leaves zero."""

_BODY = struct.Struct("<8sII16s16s16sQQ40x")
_HASH = struct.Struct("<Q")
assert _BODY.size + _HASH.size == HEADER_BYTES


def seal(part: Part, parent: bytes) -> None:
    """Writes the header of a part that is about to be put.

    Args:
        part: its payload does not change meanwhile.
        parent: 16 bytes, the key of the chunk before; zeros for the first of a chain.
    """
    write(part, parent, VERSION, digest(part.payload), b"")


def write(part: Part, parent: bytes, version: int, hashed: int, more: bytes) -> None:
    """Writes a header.

    Args:
        part: whose.
        parent: as for ``seal``.
        version: of the header.
        hashed: what stands for the payload's hash.
        more: what stands where zeros are in version 1, 40 bytes at most.
    """
    name = part.name
    body = _BODY.pack(
        MAGIC,
        version,
        name.shard,
        name.fingerprint,
        name.key,
        parent,
        part.payload_bytes,
        hashed,
    )
    body = body[:ZEROS_AT] + more.ljust(_BODY.size - ZEROS_AT, b"\0")
    part.header[: _BODY.size] = body
    part.header[_BODY.size : HEADER_BYTES] = _HASH.pack(digest(body))


class Told(NamedTuple):
    """What a sound header says.

    Attributes:
        version: of the header.
        name: of the value.
        parent: 16 bytes, the key of the chunk before; zeros for the first of a chain.
        payload_bytes: of the value.
        hashed: xxh3_64 of the payload; 0 where that is encrypted.
    """

    version: int
    name: Name
    parent: bytes
    payload_bytes: int
    hashed: int


def read(header: bytes | memoryview) -> Told | None:
    """Reads a header of HEADER_BYTES; None for one that is not sound."""
    body = bytes(header[: _BODY.size])
    (sealed,) = _HASH.unpack_from(header, _BODY.size)
    magic, version, shard, fingerprint, key, parent, payload_bytes, hashed = _BODY.unpack(body)
    if magic != MAGIC or sealed != digest(body):
        return None
    return Told(version, Name(fingerprint, key, shard), parent, payload_bytes, hashed)


def check(part: Part, parent: bytes) -> Status:
    """Compares what a tier filled in with what was asked for.

    Args:
        part: filled by the tier.
        parent: 16 bytes, as for ``seal``.

    Returns:
        OK; LOCKED when the value is encrypted; ABSENT when it is a sound header of another version;
        else CORRUPT, also when it is a sound value of another name, parent or length.
    """
    told = read(part.header)
    if told is None:
        return Status.CORRUPT
    if told.version != VERSION:
        return Status.LOCKED if told.version == ENCRYPTED else Status.ABSENT
    asked = (part.name, parent, part.payload_bytes)
    if (told.name, told.parent, told.payload_bytes) != asked:
        return Status.CORRUPT
    return Status.OK if told.hashed == digest(part.payload) else Status.CORRUPT


def parent_of(header: bytes, name: Name) -> bytes | None:
    """The key of the chunk before, as a header has it.

    Args:
        header: as a tier has it.
        name: of the value.

    Returns:
        16 bytes, zeros for the first of a chain; None when it is no sound header of that value.
    """
    told = read(header) if len(header) == HEADER_BYTES else None
    if told is None or told.version not in (VERSION, ENCRYPTED) or told.name != name:
        return None
    return told.parent


def digest(data: bytes | memoryview) -> int:
    """xxh3_64 of some bytes."""
    # As an object: in older releases of xxhash only this lets other threads run meanwhile.
    hasher = xxhash.xxh3_64()
    hasher.update(data)
    return hasher.intdigest()
