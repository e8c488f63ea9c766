"""The bytes that outlive the server: cut, header, record, checksum."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import extents
from protocol.errors import ErrorCode, RequestError
from protocol.extents import (
    ALIGN_BYTES,
    HEADER_DTYPE,
    RECORD_DTYPE,
    ExtentGeometry,
    checksums,
    cut,
    pack_header,
    unpack_header,
)
from protocol.ids import ArenaId, ExtentId, Fingerprint

ARENA = ArenaId(bytes(range(0x30, 0x40)))
FINGERPRINT = Fingerprint(bytes.fromhex("4ba1e7535e50637dd92ad41a5a7333cf"))
GOLDEN_HEADER = bytes.fromhex(
    "4b564b4545504558010000008000000001000000f70000000000000001000000"
    "0010000000000000001000000000000000900000000000000000100000000000"
    "303132333435363738393a3b3c3d3e3f4ba1e7535e50637dd92ad41a5a7333cf"
    "00000000000000000000000000000000000000000000000011489e28b589a18a"
)
GOLDEN_RECORD = bytes.fromhex(
    "2d4d0c33084dc6041aa1f65dd4ea3e02c568aa369d74f8a39cae3c3f0fc50663"
    "4ba1e7535e50637d000000000100010000100000000000000500000000000000"
    "000102030405060708090a0b0c0d0e0f01000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000aff0a1f37616f538"
)
MASK = (1 << 64) - 1


def make(payload_bytes: int = 4096, file_bytes: int = 1 << 20) -> ExtentGeometry:
    return cut(ExtentId(1), FINGERPRINT, 0, 1, payload_bytes, file_bytes)


def checksum_by_formula(row: bytes) -> int:
    """The documented loop in plain integers."""
    multiplier = 0x9E3779B97F4A7C15
    mixed = multiplier
    for word in struct.unpack("<15Q", row[:120]):
        mixed = ((mixed ^ word) * multiplier) & MASK
        mixed ^= mixed >> 29
    return mixed | 1


def test_header_is_golden() -> None:
    assert pack_header(make(), ARENA) == GOLDEN_HEADER
    geometry, arena = unpack_header(GOLDEN_HEADER + bytes(100))
    assert (geometry, arena) == (make(), ARENA)


def test_record_is_golden() -> None:
    row = np.frombuffer(GOLDEN_RECORD, dtype=RECORD_DTYPE)
    assert int(checksums(row)[0]) == int(row["checksum"][0]) == checksum_by_formula(GOLDEN_RECORD)
    assert (int(row["generation"][0]), int(row["state"][0])) == (5, extents.STATE_HELD)
    assert bytes(row["owner"][0]) == bytes(range(16))


def test_header_and_record_have_128_bytes() -> None:
    assert (HEADER_DTYPE.itemsize, RECORD_DTYPE.itemsize) == (128, 128)
    for dtype in (HEADER_DTYPE, RECORD_DTYPE):
        assert dtype.fields is not None
        assert dtype.fields["checksum"][1] == 120
    assert len(GOLDEN_HEADER) == len(GOLDEN_RECORD) == 128


@given(st.lists(st.binary(min_size=128, max_size=128), min_size=1, max_size=4))
def test_checksums_follow_the_formula_row_by_row(rows: list[bytes]) -> None:
    array = np.frombuffer(b"".join(rows), dtype=RECORD_DTYPE)
    assert checksums(array).tolist() == [checksum_by_formula(row) for row in rows]


@pytest.mark.parametrize("golden", [GOLDEN_HEADER, GOLDEN_RECORD, bytes(120) + GOLDEN_HEADER[120:]])
def test_one_flipped_bit_anywhere_is_caught(golden: bytes) -> None:
    valid = bytearray(golden)
    valid[120:] = struct.pack("<Q", checksum_by_formula(golden))
    flipped = np.tile(np.frombuffer(bytes(valid), dtype=np.uint8), (1024, 1))
    for bit in range(1024):
        flipped[bit, bit // 8] ^= 1 << bit % 8
    rows = flipped.reshape(-1).view(RECORD_DTYPE)
    assert not (checksums(rows) == rows["checksum"]).any()


@given(st.binary(min_size=128, max_size=128), st.integers(0, 1023))
def test_one_flipped_bit_of_any_record_is_caught(row: bytes, bit: int) -> None:
    changed = bytearray(row[:120] + struct.pack("<Q", checksum_by_formula(row)))
    changed[bit // 8] ^= 1 << bit % 8
    rows = np.frombuffer(bytes(changed), dtype=RECORD_DTYPE)
    assert int(checksums(rows)[0]) != int(rows["checksum"][0])


def test_a_zeroed_checksum_is_never_valid() -> None:
    """However a record was torn, checksum 0 is void."""
    rows = np.frombuffer(np.random.default_rng(1).bytes(128 * 1000), dtype=RECORD_DTYPE)
    assert (checksums(rows) & np.uint64(1)).all()
    assert int(checksums(np.zeros(1, dtype=RECORD_DTYPE))[0]) != 0


@given(st.integers(1, 1 << 24), st.integers(0, 1 << 30))
def test_cut_makes_as_many_slots_as_fit(payload_bytes: int, file_bytes: int) -> None:
    geometry = make(payload_bytes, file_bytes)
    assert geometry.slot_bytes % ALIGN_BYTES == 0
    assert 0 <= geometry.slot_bytes - payload_bytes < ALIGN_BYTES
    assert geometry.data_offset_bytes % ALIGN_BYTES == 0
    records_end = ALIGN_BYTES + 128 * geometry.num_slots
    assert records_end <= geometry.data_offset_bytes < records_end + ALIGN_BYTES
    last = geometry.slot_offset_bytes(geometry.num_slots - 1)
    assert geometry.file_bytes == last + geometry.slot_bytes
    assert geometry.file_bytes <= file_bytes or geometry.num_slots == 1
    one_more = dataclasses.replace(geometry, num_slots=geometry.num_slots + 1)
    assert one_more.file_bytes > file_bytes


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 26), st.data())
def test_generations_stand_inside_their_records(
    payload_bytes: int, file_bytes: int, data: st.DataObject
) -> None:
    geometry = make(payload_bytes, file_bytes)
    slot = data.draw(st.integers(0, geometry.num_slots - 1))
    assert geometry.generation_offset_bytes(slot) == 4096 + 128 * slot + 56
    assert geometry.generation_offset_bytes(slot) + 8 <= geometry.data_offset_bytes


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 1023),
    st.integers(1, 256),
    st.integers(1, 1 << 38),
    st.binary(min_size=16, max_size=16),
)
def test_headers_round_trip(
    extent: int, shard: int, chunk_blocks: int, payload_bytes: int, arena: bytes
) -> None:
    geometry = cut(ExtentId(extent), FINGERPRINT, shard, chunk_blocks, payload_bytes, 1 << 30)
    blob = pack_header(geometry, ArenaId(arena))
    assert unpack_header(blob) == (geometry, arena)


def resealed(**changes: int) -> bytes:
    row = np.frombuffer(GOLDEN_HEADER, dtype=HEADER_DTYPE).copy()
    for name, value in changes.items():
        row[name] = value
    row["checksum"] = checksums(row)
    return bytes(row.tobytes())


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (GOLDEN_HEADER[:127], "127 bytes"),
        (b"", "0 bytes"),
        (bytes(128), "not an extent file"),
        (b"X" + GOLDEN_HEADER[1:], "not an extent file"),
        (resealed(version=2), "version 1"),
        (resealed(record_bytes=256), "128 bytes"),
        (GOLDEN_HEADER[:-1] + b"\0", "checksum"),
        (GOLDEN_HEADER[:20] + b"\0" + GOLDEN_HEADER[21:], "checksum"),
        (resealed(num_slots=246), "contradicts"),
        (resealed(file_bytes=1), "contradicts"),
        (resealed(payload_bytes=4097), "contradicts"),
        (resealed(payload_bytes=0), "contradicts"),
        (resealed(num_slots=0, data_offset_bytes=4096, file_bytes=4096), "contradicts"),
        (resealed(slot_bytes=4097, file_bytes=36864 + 247 * 4097), "contradicts"),
    ],
)
def test_foreign_torn_and_newer_headers(blob: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        unpack_header(blob)
    assert caught.value.code is ErrorCode.MALFORMED
