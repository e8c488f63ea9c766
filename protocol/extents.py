"""Extent file format v1: header, one record per slot, slots.

Purpose: the bytes that outlive the server. The server writes header and records; engines map
the file read-only and check a slot's generation in their own mapping after each copy. Must not
know: paths, mappings, who evicts. Runs in: server main process, copiers, engines.

Layout of a file: header in the first 4096 bytes; ``num_slots`` records of 128 bytes from byte
4096; slots of ``slot_bytes`` from ``data_offset_bytes``, both multiples of 4096.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ErrorCode, RequestError
from protocol.ids import ArenaId, ExtentId, Fingerprint

ALIGN_BYTES = 4096
RECORDS_OFFSET_BYTES = ALIGN_BYTES
MAGIC = b"KVKEEPEX"
FORMAT_VERSION = 1

HEADER_DTYPE = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("record_bytes", "<u4"),
        ("extent", "<u4"),
        ("num_slots", "<u4"),
        ("shard", "<u4"),
        ("chunk_blocks", "<u4"),
        ("slot_bytes", "<u8"),
        ("payload_bytes", "<u8"),
        ("data_offset_bytes", "<u8"),
        ("file_bytes", "<u8"),
        ("arena", "V16"),
        ("fingerprint", "V16"),
        ("reserved", "V24"),
        ("checksum", "<u8"),
    ]
)

#: One slot's record. ``checksum`` covers the 15 words before it and is written last, zero
#: first: a kill at any byte leaves the record whole or void.
RECORD_DTYPE = np.dtype(
    [
        ("key", "V16"),
        ("parent", "V16"),
        ("namespace", "V8"),
        ("shard", "<u4"),
        ("chunk_blocks", "<u2"),
        ("state", "u1"),
        ("flags", "u1"),
        ("payload_bytes", "<u8"),
        ("generation", "<u8"),
        ("owner", "V16"),
        ("stamp", "<u8"),
        ("tenant", "V16"),
        ("reserved", "V16"),
        ("checksum", "<u8"),
    ]
)
assert RECORD_DTYPE.itemsize == 128
assert HEADER_DTYPE.itemsize == 128

STATE_VOID = 0
STATE_HELD = 1
STATE_DELETED = 2

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
_ODD = np.uint64(1)


def checksums(rows: NDArray[np.void]) -> NDArray[np.uint64]:
    """Checksum of each row: multiply, xor, shift over all 8-byte words but the last.

    Args:
        rows: RECORD_DTYPE[n] or HEADER_DTYPE[n], contiguous.

    Returns:
        uint64[n], never 0, so that a zeroed field is never valid.
    """
    words = rows.view("<u8").reshape(len(rows), -1).T
    mixed = np.full(len(rows), _MIX, dtype=np.uint64)
    shifted = np.empty_like(mixed)
    # In place, since this is most of what a COMMIT costs the loop; arrays wrap around silently.
    for word in words[:-1]:
        np.bitwise_xor(mixed, word, out=mixed)
        np.multiply(mixed, _MIX, out=mixed)
        np.right_shift(mixed, _SHIFT, out=shifted)
        np.bitwise_xor(mixed, shifted, out=mixed)
    result: NDArray[np.uint64] = np.bitwise_or(mixed, _ODD, out=mixed)
    return result


@dataclass(frozen=True)
class ExtentGeometry:
    """What one extent file is for and how it is cut.

    Attributes:
        extent: its id.
        fingerprint: namespace whose engines may read it.
        shard: the one shard it holds.
        chunk_blocks: blocks per chunk.
        payload_bytes: used bytes of a slot.
        slot_bytes: distance of slots, a multiple of 4096.
        num_slots: slots in the file.
    """

    extent: ExtentId
    fingerprint: Fingerprint
    shard: int
    chunk_blocks: int
    payload_bytes: int
    slot_bytes: int
    num_slots: int

    @property
    def data_offset_bytes(self) -> int:
        """Where slot 0 begins."""
        return RECORDS_OFFSET_BYTES + align(self.num_slots * RECORD_DTYPE.itemsize)

    @property
    def file_bytes(self) -> int:
        """Length of the file."""
        return self.data_offset_bytes + self.num_slots * self.slot_bytes

    def slot_offset_bytes(self, slot: int) -> int:
        """Where a slot begins within the file."""
        return self.data_offset_bytes + slot * self.slot_bytes

    def generation_offset_bytes(self, slot: int) -> int:
        """Where a slot's generation stands within the file, 8 bytes LE."""
        fields = RECORD_DTYPE.fields
        offset = int(fields["generation"][1]) if fields else 0
        return RECORDS_OFFSET_BYTES + slot * RECORD_DTYPE.itemsize + offset


def align(num_bytes: int) -> int:
    """Rounds up to the alignment of records and slots."""
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES


def cut(
    extent: ExtentId,
    fingerprint: Fingerprint,
    shard: int,
    chunk_blocks: int,
    payload_bytes: int,
    file_bytes: int,
) -> ExtentGeometry:
    """Cuts a file of at most ``file_bytes`` into as many slots as fit, at least one.

    Args:
        extent: id of the new extent.
        fingerprint: owner namespace.
        shard: shard it holds.
        chunk_blocks: blocks per chunk.
        payload_bytes: bytes of one shard of one chunk.
        file_bytes: wanted length; exceeded only when a single slot needs more.

    Returns:
        The geometry; its ``file_bytes`` is the real length.
    """
    slot_bytes = align(payload_bytes)
    room = file_bytes - RECORDS_OFFSET_BYTES
    num_slots = max(1, room // (slot_bytes + RECORD_DTYPE.itemsize))
    while (
        num_slots > 1 and align(num_slots * RECORD_DTYPE.itemsize) + num_slots * slot_bytes > room
    ):
        num_slots -= 1
    return ExtentGeometry(
        extent, fingerprint, shard, chunk_blocks, payload_bytes, slot_bytes, num_slots
    )


def pack_header(geometry: ExtentGeometry, arena: ArenaId) -> bytes:
    """The header of a new extent file.

    Args:
        geometry: how the file is cut.
        arena: whose directory it lies in.

    Returns:
        bytes[128], for the start of the file.
    """
    row = np.zeros(1, dtype=HEADER_DTYPE)
    row["magic"] = MAGIC
    row["version"] = FORMAT_VERSION
    row["record_bytes"] = RECORD_DTYPE.itemsize
    for name in ("extent", "num_slots", "shard", "chunk_blocks", "slot_bytes", "payload_bytes"):
        row[name] = getattr(geometry, name)
    row["data_offset_bytes"] = geometry.data_offset_bytes
    row["file_bytes"] = geometry.file_bytes
    row["arena"] = np.void(arena)
    row["fingerprint"] = np.void(geometry.fingerprint)
    row["checksum"] = checksums(row)
    return row.tobytes()


def unpack_header(blob: bytes) -> tuple[ExtentGeometry, ArenaId]:
    """Reads and checks a header.

    Args:
        blob: at least the first 128 bytes of the file.

    Returns:
        The geometry and the arena it belongs to.

    Raises:
        RequestError: MALFORMED for a foreign, torn or newer file.
    """
    if len(blob) < HEADER_DTYPE.itemsize:
        raise RequestError(ErrorCode.MALFORMED, f"{len(blob)} bytes are no extent header")
    row = np.frombuffer(blob[: HEADER_DTYPE.itemsize], dtype=HEADER_DTYPE)
    if bytes(row["magic"][0]) != MAGIC or int(row["version"][0]) != FORMAT_VERSION:
        raise RequestError(ErrorCode.MALFORMED, "not an extent file of format version 1")
    if int(checksums(row)[0]) != int(row["checksum"][0]):
        raise RequestError(ErrorCode.MALFORMED, "the extent header's checksum does not match")
    if int(row["record_bytes"][0]) != RECORD_DTYPE.itemsize:
        raise RequestError(ErrorCode.MALFORMED, "the extent's records are not of 128 bytes")
    geometry = ExtentGeometry(
        extent=ExtentId(int(row["extent"][0])),
        fingerprint=Fingerprint(bytes(row["fingerprint"][0])),
        shard=int(row["shard"][0]),
        chunk_blocks=int(row["chunk_blocks"][0]),
        payload_bytes=int(row["payload_bytes"][0]),
        slot_bytes=int(row["slot_bytes"][0]),
        num_slots=int(row["num_slots"][0]),
    )
    stated = (int(row["data_offset_bytes"][0]), int(row["file_bytes"][0]))
    sound = 1 <= geometry.payload_bytes <= geometry.slot_bytes and geometry.num_slots >= 1
    aligned = geometry.slot_bytes % ALIGN_BYTES == 0
    if not (sound and aligned) or stated != (geometry.data_offset_bytes, geometry.file_bytes):
        raise RequestError(ErrorCode.MALFORMED, "the extent header contradicts itself")
    return geometry, ArenaId(bytes(row["arena"][0]))
