"""How a slab's bytes are divided: what the index may take, how long a segment is.

Must not know: files. Runs in: the porter.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.tiers.disk.files import BLOCK_BYTES

MIB = 1 << 20
GIB = 1 << 30
NAME_BYTES = 36
"""Of a value in the index: fingerprint 16, key 16, shard u32 big-endian."""

ENTRY_ROOM_BYTES = 400
"""Of the index file for each value, at most: an entry is some 70 bytes long, pages are two thirds
full, and a transaction that touches all of them leaves as many behind, twice, before they are used
again."""

MAX_SEGMENTS = 512
"""Each costs a descriptor; a process may have 1,024 where nobody raised that."""

MOST_TAIL_BYTES = 16 * MIB

AGES = 32
"""Into how many the values are sorted by their last use: see ``Catalog``."""


@dataclass(frozen=True)
class Plan:
    """Sizes of one slab.

    Attributes:
        size_bytes: all that the folder may take.
        index_bytes: of these, for the index file.
        data_bytes: of these, for segments.
        segment_bytes: of one segment, roughly; longer only if one slot is longer.
        max_values: how many the index has room for.
        age_bytes: of values used until the next span of ages begins.
        tail_bytes: for what the index does not know yet; of what is left for folders and the like.
        described_bytes: for what namespaces are, of the same.
    """

    size_bytes: int
    index_bytes: int
    data_bytes: int
    segment_bytes: int
    max_values: int
    age_bytes: int
    tail_bytes: int
    described_bytes: int


def divide(size_bytes: int) -> Plan:
    """Divides a folder's bytes.

    Args:
        size_bytes: the operator's.
    """
    index_bytes = max(MIB, size_bytes // 48 // BLOCK_BYTES * BLOCK_BYTES)
    # Folders, the lock, and the file system's own lists of where a file's blocks are.
    extra_bytes = max(MIB // 2, size_bytes // 256)
    data_bytes = size_bytes - index_bytes - extra_bytes
    segment_bytes = max(min(GIB, size_bytes // 16), size_bytes // MAX_SEGMENTS)
    return Plan(
        size_bytes=size_bytes,
        index_bytes=index_bytes,
        data_bytes=data_bytes,
        segment_bytes=segment_bytes,
        max_values=(index_bytes - MIB // 4) // ENTRY_ROOM_BYTES,
        age_bytes=max(1, data_bytes // AGES),
        tail_bytes=min(extra_bytes // 2, MOST_TAIL_BYTES),
        described_bytes=min(extra_bytes // 4, MIB),
    )
