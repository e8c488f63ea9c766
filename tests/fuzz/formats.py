"""What is read beside messages: extent headers and records, blobs, URLs, keys.

Each format draws an input of bytes and checks it against an oracle that does not come from the code
under test. Runs in the fuzzer's process.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protocol import endpoint, extents, keys, layout
from protocol.errors import ConfigError, RequestError
from protocol.extents import HEADER_DTYPE, RECORD_DTYPE, checksums
from protocol.ids import ArenaId, ExtentId, Fingerprint
from protocol.layout import Region, ShardPool
from tests.fuzz.finding import Finding, require

MASK = (1 << 64) - 1
_BOUNDS = (0, 1, 2, 127, 128, 4095, 4096, 4097, 1 << 31, (1 << 32) - 1, 1 << 63, MASK)


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        draw: makes an input.
        check: raises a finding when the oracle is broken.
    """

    draw: Callable[[random.Random], bytes]
    check: Callable[[bytes], None]


def plain_checksum(row: bytes) -> int:
    """The page's checksum, word by word, as a reader in another language would write it."""
    value = mix = 0x9E3779B97F4A7C15
    for (word,) in struct.iter_unpack("<Q", row[:-8]):
        value = ((value ^ word) * mix) & MASK
        value ^= value >> 29
    return value | 1


# --- headers ---------------------------------------------------------------------------------


def _draw_header(draw: random.Random) -> bytes:
    geometry = extents.cut(
        ExtentId(draw.choice((1, 7, (1 << 32) - 1))),
        Fingerprint(draw.randbytes(16)),
        draw.randrange(4),
        draw.choice((1, 2, 256)),
        draw.choice((1, 4096, 5000, 1 << 20)),
        draw.choice((1 << 16, 1 << 20, 1 << 30)),
    )
    row = bytearray(extents.pack_header(geometry, ArenaId(draw.randbytes(16))))
    for _ in range(draw.choice((0, 1, 1, 1, 2))):
        if draw.random() < 0.6:
            fields = HEADER_DTYPE.fields
            assert fields is not None
            kind, at = fields[draw.choice(list(fields))][:2]
            size = min(8, kind.itemsize)
            value = draw.choice(_BOUNDS) & ((1 << 8 * size) - 1)
            row[at : at + size] = value.to_bytes(size, "little")
        else:
            row[draw.randrange(128)] ^= 1 << draw.randrange(8)
    if draw.random() < 0.7:
        row[120:] = plain_checksum(bytes(row)).to_bytes(8, "little")
    return bytes(row[: draw.choice((128, 128, 128, 128, 127, 0, 64))]) + bytes(draw.randrange(3))


def _check_header(data: bytes) -> None:
    try:
        geometry, arena = extents.unpack_header(data)
    except RequestError:
        return
    except Exception as error:
        raise Finding(f"an untyped error: {error!r}") from error
    row = data[:128]
    require(len(row) == 128, "a header is too short: and let through")
    require(row[:8] == b"KVKEEPEX" and row[8:12] == b"\1\0\0\0", "a foreign header: let through")
    stated = int.from_bytes(row[120:], "little")
    require(stated == plain_checksum(row), "a header with a wrong checksum: let through")
    require(geometry.payload_bytes <= geometry.slot_bytes, "a header contradicts itself: payload")
    require(geometry.slot_bytes % 4096 == 0, "a header contradicts itself: alignment")
    size = geometry.data_offset_bytes + geometry.num_slots * geometry.slot_bytes
    require(size == int.from_bytes(row[56:64], "little"), "a header contradicts itself: length")
    second = extents.unpack_header(extents.pack_header(geometry, arena))
    require(second == (geometry, arena), "changed by a round trip: a header")


# --- records ---------------------------------------------------------------------------------


def _draw_record(draw: random.Random) -> bytes:
    row = bytearray(draw.randbytes(128))
    row[120:] = plain_checksum(bytes(row)).to_bytes(8, "little")
    if draw.random() < 0.7:
        at = draw.randrange(128)
        row[at] ^= 1 << draw.randrange(8)
    if draw.random() < 0.1:
        row[120:] = bytes(8)
    return bytes(row)


def _check_record(data: bytes) -> None:
    if len(data) != 128:
        return
    rows = np.frombuffer(data, dtype=RECORD_DTYPE)
    mine, theirs = plain_checksum(data), int(checksums(rows)[0])
    require(theirs == mine, f"two checksums: {theirs:x} of {mine:x}")


# --- blobs -----------------------------------------------------------------------------------


def _draw_pages(draw: random.Random) -> bytes:
    pages = [draw.choice((0, 1, 6, 7, 8, -1, -(1 << 31), (1 << 31) - 1)) for _ in range(3)]
    blob = struct.pack("<3i", *pages[:3])
    return draw.choice((b"\x08", b"\x01", b"\xff")) + blob[: draw.choice((12, 12, 8, 7, 4, 0))]


def _check_pages(data: bytes) -> None:
    num_pages, blob = data[0] if data else 1, data[1:]
    try:
        pages = layout.unpack_pages(blob, num_pages)
    except RequestError:
        return
    except Exception as error:
        raise Finding(f"an untyped error: {error!r}") from error
    require(all(0 <= page < num_pages for page in pages.tolist()), f"a page outside: {pages}")
    require(layout.pack_pages(pages) == blob, "changed by a round trip: pages")


def _draw_slots(draw: random.Random) -> bytes:
    chunks, shards = draw.randrange(4), draw.randrange(1, 4)
    size = 16 * chunks * shards + draw.choice((0, 0, 0, 1, 16, -1))
    return bytes([chunks, shards]) + draw.randbytes(max(0, size))


def _check_slots(data: bytes) -> None:
    if len(data) < 2:
        return
    chunks, shards, blob = data[0], data[1], data[2:]
    try:
        found = layout.unpack_slots(blob, chunks, shards)
    except RequestError:
        require(len(blob) != 16 * chunks * shards, "refused: slots of the right length")
        return
    except Exception as error:
        raise Finding(f"an untyped error: {error!r}") from error
    require(found.shape == (chunks, shards), "slots of another shape: let through")
    require(found.tobytes() == blob, "changed by a round trip: slots")


def _draw_pool(draw: random.Random) -> bytes:
    """Memory, page, pages, then offset, size, stride of each of one or two regions."""
    size = draw.choice((64, 128, 4096))
    memory = draw.choice((size * 8, size * 8 - 1, size * 9, 1))
    regions = [
        (draw.choice((0, 0, 1, size)), size, draw.choice((size, size, size * 2, size - 1)))
        for _ in range(draw.choice((1, 1, 2)))
    ]
    page = size * len(regions) + draw.choice((0, 0, 0, 1))
    flat = (value for region in regions for value in region)
    return struct.pack(f"<{3 + 3 * len(regions)}Q", memory, page, draw.choice((1, 8, 9)), *flat)


def _check_pool(data: bytes) -> None:
    count = max(1, (len(data) - 24) // 24)
    numbers = struct.unpack(f"<{3 + 3 * count}Q", data[: 24 + 24 * count].ljust(48, b"\1"))
    memory, page_bytes, num_pages = numbers[:3]
    regions = [numbers[at : at + 3] for at in range(3, len(numbers), 3)]
    pool = ShardPool(
        shard=0,
        num_pages=num_pages,
        regions=tuple(
            Region(offset_bytes=offset, size_bytes=size, stride_bytes=stride)
            for offset, size, stride in regions
        ),
    )
    inside = all(
        offset + stride * (num_pages - 1) + size <= memory and stride >= size
        for offset, size, stride in regions
    )
    fits = inside and page_bytes == sum(size for _, size, _ in regions)
    try:
        layout.check_pool(pool, memory, page_bytes)
    except RequestError:
        require(not fits, "refused: a pool that fits")
        return
    require(fits, f"a pool that reaches outside: {regions} times {num_pages} in {memory}")


# --- URLs and keys ---------------------------------------------------------------------------

_PARTS = (
    *("ipc://", "tcp://", "inproc://", "://", "/", "a", "x" * 99, "x" * 101, "é", "\0", "\ud800"),
    *("127.0.0.1", "localhost", "[::1]", "[", "]", "::1", "10.0.0.1", ":", "1", "65535", "65536"),
    *("0", " ", "٣", "999999", "//", "/run/kvkeep.sock"),
)


def _draw_url(draw: random.Random) -> bytes:
    start = draw.choice(("ipc:///", "ipc://", "tcp://127.0.0.1:", "tcp://[::1]:", "inproc://", ""))
    text = start + "".join(draw.choices(_PARTS, k=draw.randrange(4)))
    return text.encode("utf-8", "surrogatepass")


def _check_url(data: bytes) -> None:
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return
    try:
        found = endpoint.parse(text)
    except ConfigError:
        return
    except Exception as error:
        raise Finding(f"an untyped error: {error!r}") from error
    require(endpoint.parse(found.url) == found, "changed by a round trip: a URL")
    require(found.is_tcp == (found.path == ""), "a URL of two kinds: let through")
    require(len(found.path.encode()) <= 102, "a path too long for a socket: let through")
    require(not found.is_tcp or found.host in ("127.0.0.1", "[::1]"), "a foreign host: let through")
    require(found.side_path("/run") != found.lock_path("/run"), "one path: for two files")


def _draw_tokens(draw: random.Random) -> bytes:
    count = draw.choice((0, 3, 4, 8, 9, 16))
    values = [draw.choice((0, -1, (1 << 31) - 1, -(1 << 31), 1 << 31)) for _ in range(count)]
    media = draw.choice((-1, 0, 3, 4, 15))
    return struct.pack(f"<b{count}q", media, *values)


def _check_tokens(data: bytes) -> None:
    whole = len(data[1:]) // 8
    (media, *tokens) = struct.unpack(f"<b{whole}q", (data or b"\0")[: 1 + 8 * whole])
    scope = keys.ReuseScope(cache_salt="s" if media % 2 else None)
    chain = keys.BlockHashChain.start(scope, 4)
    items = [keys.MediaItem(media, b"d" * 32)] if media else []
    fits = all(-(1 << 31) <= one < 1 << 31 for one in tokens[: len(tokens) // 4 * 4])
    try:
        count = chain.extend(tokens, items)
    except RequestError:
        require(not fits or media < 0, "refused: tokens that are int32")
        return
    require(count == len(tokens) // 4 and len(chain.keys) == 16 * count, "keys: of other blocks")
    other = keys.BlockHashChain.start(scope, 4)
    for stop in range(len(tokens) + 1):
        other.extend(tokens[:stop], items)
    require(other.keys == chain.keys, "other keys: when hashed step by step")


FORMATS: tuple[tuple[str, Format], ...] = (
    ("header", Format(_draw_header, _check_header)),
    ("record", Format(_draw_record, _check_record)),
    ("pages", Format(_draw_pages, _check_pages)),
    ("slots", Format(_draw_slots, _check_slots)),
    ("pool", Format(_draw_pool, _check_pool)),
    ("url", Format(_draw_url, _check_url)),
    ("tokens", Format(_draw_tokens, _check_tokens)),
)
