"""Packets between the server's main process and a porter, over one SOCK_SEQPACKET pair.

Purpose: small fixed structs, with an array of parts or keys behind them; a descriptor rides on
MAP_EXTENT. Every command is answered once, in any order; PROGRESS answers none. What the porter
still does with a job's memory has ended when its answer comes. Must not know: mappings, tiers,
supervision. Runs in: the server's main process and every porter.

Packets of the main process: ``kind u8, padding u8[3], count u32, number u64, size_bytes u64,
offset_bytes u64, fingerprint 16`` and then, for GET and PUT, PART_DTYPE[count]; for PROBE, DROP
and TOUCH, ``first u32, shards u32`` (which parts of each chunk are meant) and keys, 16 bytes each,
in the order of the chain; for HOTTEST the same without keys (the part that stands for a chunk, most
chunks wanted), and for OF_SALT (0, most values wanted; its fingerprint is the salt's digest); for
CONFIGURE, JSON in UTF-8; for KEEP, what a namespace is; for QUOTAS, what ``pack_quotas`` made. Of
the porter: ``kind u8, failed u8, padding u16, count u32, number u64, used_bytes u64, capacity_bytes
u64``, then for GET, PUT and TOUCH a status byte for each part (of TOUCH those of the first chunk in
front), for NAMESPACES fingerprints, for NAMESPACE what it is, for HOTTEST and NEXT ``total u32,
more u32`` (chunks in the list; whether others follow) and then the key of a chunk and that of its
parent, 16 bytes each, parents first, for OF_SALT what ``pack_names`` made; else an error text in
UTF-8 when it failed. Behind what ``pack_shares`` made, the ``count`` bytes at the end of HEALTH are
what the tier warns of, in UTF-8.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES
from server.core.tiers.parts import MAX_KEYS, MAX_PARTS, PAGE_CHUNKS, PART_DTYPE

MAX_TEXT_BYTES = 240
MAX_JSON_BYTES = 32_768

_COMMAND = struct.Struct("<B3xIQQQ16s")
_SHARDS = struct.Struct("<II")
_ANSWER = struct.Struct("<BBxxIQQQ")

MAX_COMMAND_BYTES = _COMMAND.size + max(
    PART_DTYPE.itemsize * MAX_PARTS, _SHARDS.size + ID_BYTES * MAX_KEYS, MAX_JSON_BYTES
)
MAX_ANSWER_BYTES = _ANSWER.size + max(
    MAX_PARTS, MAX_TEXT_BYTES, MAX_JSON_BYTES, 8 + 2 * ID_BYTES * PAGE_CHUNKS
)


class Kind(IntEnum):
    """What a command asks for, and what an answer answers."""

    READY = 0
    CONFIGURE = 1
    MAP_EXTENT = 2
    UNMAP_EXTENT = 3
    PROBE = 4
    GET = 5
    PUT = 6
    DROP = 7
    CLEAR = 8
    HEALTH = 9
    PROGRESS = 10
    KEEP = 11
    NAMESPACES = 12
    NAMESPACE = 13
    HOTTEST = 14
    NEXT = 15
    TOUCH = 16
    QUOTAS = 17
    OF_SALT = 18


_OF_SHARDS = frozenset({Kind.PROBE, Kind.DROP, Kind.HOTTEST, Kind.TOUCH, Kind.OF_SALT})


@dataclass(frozen=True)
class Command:
    """One packet of the main process.

    Attributes:
        kind: what to do.
        number: job number, or the extent's id.
        size_bytes: of the file to map.
        offset_bytes: first byte of an extent that may be written.
        fingerprint: 16 bytes, of the namespace; zeros where there is none.
        parts: PART_DTYPE[n] of GET and PUT.
        keys: 16 bytes each, of PROBE, DROP and TOUCH.
        shards: of PROBE, DROP and TOUCH: so many parts of each chunk are meant; of HOTTEST: most
            chunks; of OF_SALT: most values.
        first: the first of them.
        text: JSON of CONFIGURE; of KEEP what the namespace is; of QUOTAS all of them.
    """

    kind: Kind
    number: int
    size_bytes: int = 0
    offset_bytes: int = 0
    fingerprint: bytes = bytes(ID_BYTES)
    parts: NDArray[np.void] | None = None
    keys: bytes = b""
    shards: int = 0
    first: int = 0
    text: bytes = b""


@dataclass(frozen=True)
class Answer:
    """One packet of the porter.

    Attributes:
        kind: of the command; READY, once, for CONFIGURE; PROGRESS when no job has ended for a
            while but parts of one have, so that a slow tier is not taken for a wedged one, and for
            what is to be logged, as an error text.
        number: of the command.
        count: of PROBE: leading chunks that are there whole.
        error: why all of it failed, in one line, or None.
        statuses: of GET, PUT and TOUCH: one ``server.core.tiers.parts.Status`` per part; of what
            lists, what it lists; of HEALTH, what ``pack_shares`` made.
        used_bytes: of READY and HEALTH, advisory.
        capacity_bytes: of READY and HEALTH, advisory, 0 for unknown.
        warning: of HEALTH: why a tier that serves may be of little use, one line; empty for none.
    """

    kind: Kind
    number: int
    count: int = 0
    error: str | None = None
    statuses: bytes = field(default=b"")
    used_bytes: int = 0
    capacity_bytes: int = 0
    warning: str = ""


def pack_command(command: Command) -> bytes:
    """One packet for the porter.

    Args:
        command: within MAX_PARTS, MAX_KEYS and MAX_JSON_BYTES.

    Returns:
        The packet.
    """
    if command.kind in (Kind.GET, Kind.PUT):
        assert command.parts is not None
        count, tail = len(command.parts), command.parts.tobytes()
    elif command.kind in _OF_SHARDS:
        count = len(command.keys) // ID_BYTES
        tail = _SHARDS.pack(command.first, command.shards) + command.keys
    else:
        count, tail = len(command.text), command.text
    return (
        _COMMAND.pack(
            command.kind,
            count,
            command.number,
            command.size_bytes,
            command.offset_bytes,
            command.fingerprint,
        )
        + tail
    )


def unpack_command(packet: bytes) -> Command:
    """Reads a packet of the main process.

    Args:
        packet: as received.

    Returns:
        The command.

    Raises:
        ValueError: not a packet of this version.
    """
    if len(packet) < _COMMAND.size:
        raise ValueError(f"a command of {len(packet)} bytes")
    kind, count, number, size_bytes, offset_bytes, fingerprint = _COMMAND.unpack_from(packet)
    command, tail = Kind(kind), packet[_COMMAND.size :]
    lengths = {
        Kind.GET: count * PART_DTYPE.itemsize,
        Kind.PUT: count * PART_DTYPE.itemsize,
        Kind.PROBE: _SHARDS.size + count * ID_BYTES,
        Kind.DROP: _SHARDS.size + count * ID_BYTES,
        Kind.HOTTEST: _SHARDS.size + count * ID_BYTES,
        Kind.TOUCH: _SHARDS.size + count * ID_BYTES,
        Kind.OF_SALT: _SHARDS.size + count * ID_BYTES,
    }
    if len(tail) != lengths.get(command, count):
        raise ValueError(f"a command {command.name} of {len(packet)} bytes with {count} parts")
    base = Command(command, number, size_bytes, offset_bytes, fingerprint)
    if command in (Kind.GET, Kind.PUT):
        return Command(
            **{**base.__dict__, "parts": np.frombuffer(tail, PART_DTYPE)},
        )
    if command in _OF_SHARDS:
        first, shards = _SHARDS.unpack_from(tail)
        keys = tail[_SHARDS.size :]
        return Command(**{**base.__dict__, "keys": keys, "shards": shards, "first": first})
    return Command(**{**base.__dict__, "text": tail})


def pack_answer(answer: Answer) -> bytes:
    """One packet for the main process.

    Args:
        answer: its texts are cut to MAX_TEXT_BYTES.

    Returns:
        The packet.
    """
    text = (answer.error or "").encode("utf-8", "replace")[:MAX_TEXT_BYTES]
    warning = answer.warning.encode("utf-8", "replace")[:MAX_TEXT_BYTES]
    head = _ANSWER.pack(
        answer.kind,
        answer.error is not None,
        len(warning) if answer.kind == Kind.HEALTH else answer.count,
        answer.number,
        answer.used_bytes,
        answer.capacity_bytes,
    )
    return head + (text if answer.error is not None else answer.statuses + warning)


def unpack_answer(packet: bytes) -> Answer:
    """Reads a packet of the porter.

    Args:
        packet: as received.

    Returns:
        The answer.

    Raises:
        ValueError: not a packet of this version.
    """
    if len(packet) < _ANSWER.size:
        raise ValueError(f"an answer of {len(packet)} bytes")
    kind, failed, count, number, used_bytes, capacity_bytes = _ANSWER.unpack_from(packet)
    tail = packet[_ANSWER.size :]
    if failed:
        return Answer(Kind(kind), number, count, error=tail.decode("utf-8", "replace"))
    warning = ""
    if kind == Kind.HEALTH:
        end = max(0, len(tail) - count)
        tail, warning, count = tail[:end], tail[end:].decode("utf-8", "replace"), 0
    return Answer(Kind(kind), number, count, None, tail, used_bytes, capacity_bytes, warning)
