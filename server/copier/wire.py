"""Packets between the server's main process and a copier, over one SOCK_SEQPACKET pair.

Purpose: small fixed structs, with arrays of int64 behind them for copies; a descriptor rides on
the packet that needs one. Every command is answered once, so that whoever waits for room in the
socket will see an answer; the copier for host memory answers in the order of the commands, those of
devices when each is done (but in order for one pool). Must not know: mappings, supervision. Runs
in: the server's main process and every copier.

Packets of the main process: ``kind u8, last u8, padding u16, num_parts u32, number u64, other u64,
pool u64, offset_bytes u64``, then for COPY ``int64[3, num_parts]`` and for OPEN_POOL the handle (64
bytes). Of the copier: ``kind u8, failed u8, padding u16, node u32, number u64, device_bytes
u64``, then an error text in UTF-8.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

MAX_PARTS = 2048
"""Parts of one COPY packet; a longer job goes in several, of which the last is marked."""

MAX_TEXT_BYTES = 240

HANDLE_BYTES = 64
"""Of a handle to another process's device memory."""

_COMMAND = struct.Struct("<BBHIQQQQ")
_ANSWER = struct.Struct("<BBHIQQ")
_PART_DTYPE = np.dtype("<i8")

MAX_COMMAND_BYTES = _COMMAND.size + 3 * MAX_PARTS * _PART_DTYPE.itemsize
MAX_ANSWER_BYTES = _ANSWER.size + MAX_TEXT_BYTES


class Kind(IntEnum):
    """What a command asks for, and what an answer answers."""

    READY = 0
    MAP_POOL = 1
    UNMAP_POOL = 2
    MAP_EXTENT = 3
    UNMAP_EXTENT = 4
    COPY = 5
    OPEN_POOL = 6


@dataclass(frozen=True)
class Command:
    """One packet of the main process.

    Attributes:
        kind: what to do.
        number: pool handle, extent id or job number.
        pool: of a COPY.
        extent: of a COPY.
        size_bytes: of the file to map; of an OPEN_POOL, the pool's length.
        offset_bytes: first byte of an extent that a copy may write; of an OPEN_POOL, where the
            pool begins within the allocation that the handle names.
        last: whether this packet ends its job.
        parts: int64[3, n] of a COPY: sources, targets, lengths in bytes. Sources count from the
            pool's first byte, whatever its memory.
        handle: of an OPEN_POOL, 64 bytes.
    """

    kind: Kind
    number: int
    pool: int = 0
    extent: int = 0
    size_bytes: int = 0
    offset_bytes: int = 0
    last: bool = True
    parts: NDArray[np.int64] | None = None
    handle: bytes = b""


@dataclass(frozen=True)
class Answer:
    """One packet of the copier.

    Attributes:
        kind: of the command, or READY once after the start.
        number: of the command.
        error: why it failed, in one line, or None; of READY, why this copier cannot work, after
            which it ends.
        device_bytes: of a device's READY: memory of the device that this copier takes, 0 for
            unknown or none.
        numa_node: of a device's READY: where this copier and its buffer were placed; -1 when they
            were not. The packet has one more.
    """

    kind: Kind
    number: int
    error: str | None
    device_bytes: int = 0
    numa_node: int = -1


def pack_command(command: Command) -> bytes:
    """One packet for the copier.

    Args:
        command: within MAX_PARTS.

    Returns:
        The packet.

    Raises:
        ValueError: a handle of another length, or one on another command than OPEN_POOL.
    """
    if len(command.handle) != (HANDLE_BYTES if command.kind == Kind.OPEN_POOL else 0):
        raise ValueError(f"a handle of {len(command.handle)} bytes on command {command.kind}")
    parts = command.parts
    other = command.extent if command.kind == Kind.COPY else command.size_bytes
    head = _COMMAND.pack(
        command.kind,
        command.last,
        0,
        0 if parts is None else parts.shape[1],
        command.number,
        other,
        command.pool,
        command.offset_bytes,
    )
    if parts is None:
        return head + command.handle
    return head + parts.astype(_PART_DTYPE, copy=False).tobytes()


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
    kind, last, _, num_parts, number, other, pool, offset_bytes = _COMMAND.unpack_from(packet)
    tail_bytes = HANDLE_BYTES if kind == Kind.OPEN_POOL else 3 * num_parts * _PART_DTYPE.itemsize
    if len(packet) != _COMMAND.size + tail_bytes:
        raise ValueError(f"a command of {len(packet)} bytes with {num_parts} parts")
    if kind == Kind.COPY:
        parts = np.frombuffer(packet, _PART_DTYPE, offset=_COMMAND.size).reshape(3, num_parts)
        return Command(Kind.COPY, number, pool, other, last=bool(last), parts=parts)
    handle = packet[_COMMAND.size :] if kind == Kind.OPEN_POOL else b""
    return Command(Kind(kind), number, size_bytes=other, offset_bytes=offset_bytes, handle=handle)


def copy_commands(
    job: int,
    pool: int,
    extent: int,
    sources: NDArray[np.int64],
    targets: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> list[Command]:
    """The packets of one copy job.

    Args:
        job: its number.
        pool: handle of the source.
        extent: id of the destination.
        sources: int64[n], byte offsets in the pool.
        targets: int64[n], byte offsets in the extent file.
        lengths: int64[n], bytes.

    Returns:
        At least one command, of which the last says so.
    """
    parts = np.stack((sources, targets, lengths)).astype(np.int64, copy=False)
    starts = range(0, max(1, parts.shape[1]), MAX_PARTS)
    return [
        Command(
            Kind.COPY,
            job,
            pool,
            extent,
            last=start + MAX_PARTS >= parts.shape[1],
            parts=parts[:, start : start + MAX_PARTS],
        )
        for start in starts
    ]


def pack_answer(answer: Answer) -> bytes:
    """One packet for the main process.

    Args:
        answer: its text is cut to MAX_TEXT_BYTES.

    Returns:
        The packet.
    """
    text = (answer.error or "").encode("utf-8", "replace")[:MAX_TEXT_BYTES]
    failed = answer.error is not None
    figures = (answer.numa_node + 1, answer.number, answer.device_bytes)
    return _ANSWER.pack(answer.kind, failed, 0, *figures) + text


def unpack_answer(packet: bytes) -> Answer:
    """Reads a packet of the copier.

    Args:
        packet: as received.

    Returns:
        The answer.

    Raises:
        ValueError: not a packet of this version.
    """
    if len(packet) < _ANSWER.size:
        raise ValueError(f"an answer of {len(packet)} bytes")
    kind, failed, _, node, number, device_bytes = _ANSWER.unpack_from(packet)
    text = packet[_ANSWER.size :].decode("utf-8", "replace")
    return Answer(Kind(kind), number, text if failed else None, device_bytes, node - 1)
