"""The header before every value: what it is, and how to tell that it is that.

Purpose: a tier is not believed. A value that it hands back is published only when the header names
what was asked for and the payload's hash is the header's. Must not know: engines, the index. Runs
in: the porter's worker threads; hashing lets the interpreter go.

Little-endian: ``magic 8, version u32, shard u32, fingerprint 16, key 16, parent's key 16,
payload_bytes u64, xxh3_64 of the payload u64``, zeros up to 120, ``xxh3_64 of these 120 bytes
u64``.
"""

from __future__ import annotations

import struct

import xxhash

from server.core.tiers.parts import Status
from server.tiers.interface import HEADER_BYTES, Name, Part

MAGIC = b"kvkeepL2"
VERSION = 1

_BODY = struct.Struct("<8sII16s16s16sQQ40x")
_HASH = struct.Struct("<Q")
assert _BODY.size + _HASH.size == HEADER_BYTES


def seal(part: Part, parent: bytes) -> None:
    """Writes the header of a part that is about to be put.

    Args:
        part: its payload does not change meanwhile.
        parent: 16 bytes, the key of the chunk before; zeros for the first of a chain.
    """
    name = part.name
    body = _BODY.pack(
        MAGIC,
        VERSION,
        name.shard,
        name.fingerprint,
        name.key,
        parent,
        part.payload_bytes,
        digest(part.payload),
    )
    part.header[: _BODY.size] = body
    part.header[_BODY.size : HEADER_BYTES] = _HASH.pack(digest(body))


def check(part: Part, parent: bytes) -> Status:
    """Compares what a tier filled in with what was asked for.

    Args:
        part: filled by the tier.
        parent: 16 bytes, as for ``seal``.

    Returns:
        OK; ABSENT when it is a sound header of another version; else CORRUPT, also when it is a
        sound value of another name, parent or length.
    """
    name = part.name
    body = bytes(part.header[: _BODY.size])
    (sealed,) = _HASH.unpack_from(part.header, _BODY.size)
    magic, version, shard, fingerprint, key, before, payload_bytes, hashed = _BODY.unpack(body)
    if magic != MAGIC or sealed != digest(body):
        return Status.CORRUPT
    if version != VERSION:
        return Status.ABSENT
    told = (Name(fingerprint, key, shard), before, payload_bytes)
    if told != (name, parent, part.payload_bytes) or hashed != digest(part.payload):
        return Status.CORRUPT
    return Status.OK


def parent_of(header: bytes, name: Name) -> bytes | None:
    """The key of the chunk before, as a header has it.

    Args:
        header: as a tier has it.
        name: of the value.

    Returns:
        16 bytes, zeros for the first of a chain; None when it is no sound header of that value.
    """
    if len(header) != HEADER_BYTES:
        return None
    body = header[: _BODY.size]
    (sealed,) = _HASH.unpack_from(header, _BODY.size)
    magic, version, shard, fingerprint, key, before, _, _ = _BODY.unpack(body)
    if (magic, version, sealed) != (MAGIC, VERSION, digest(body)):
        return None
    return bytes(before) if Name(fingerprint, key, shard) == name else None


def digest(data: bytes | memoryview) -> int:
    """xxh3_64 of some bytes."""
    # As an object: in older releases of xxhash only this lets other threads run meanwhile.
    hasher = xxhash.xxh3_64()
    hasher.update(data)
    return hasher.intdigest()
