"""What a killed server left in its arena, read before the next one starts.

Knows the format of extent files, nothing of the server. Nothing stays open, so that the next server
finds nobody here who may read. Runs in the conductor.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from protocol.errors import RequestError
from protocol.extents import (
    RECORD_DTYPE,
    RECORDS_OFFSET_BYTES,
    STATE_HELD,
    ExtentGeometry,
    checksums,
    unpack_header,
)
from tests.restarts.content import num_wrong


@dataclass
class Snapshot:
    """The arena at a kill.

    Attributes:
        held: keys with a whole record, by fingerprint.
        begun: slots without a whole record that begin with the key of a chunk in flight: a copy
            had come there, and the record had not.
        torn: those of them whose page is not all there: the kill came amid the copy.
        files: names of the extents.
    """

    held: dict[bytes, set[bytes]] = field(default_factory=dict)
    begun: int = 0
    torn: int = 0
    files: set[str] = field(default_factory=set)

    @property
    def num_held(self) -> int:
        """Chunks with a whole record."""
        return sum(len(keys) for keys in self.held.values())


def take(arena: Path, in_flight: Collection[bytes]) -> Snapshot:
    """Reads every extent.

    Args:
        arena: its folder; no server runs on it.
        in_flight: keys whose STORE was sent and whose COMMIT was not answered.
    """
    found = Snapshot()
    wanted = frozenset(in_flight)
    for path in sorted(arena.glob("*.extent")):
        found.files.add(path.name)
        with open(path, "rb") as file:
            try:
                geometry, _ = unpack_header(file.read(RECORDS_OFFSET_BYTES))
            except RequestError:  # killed before the header was written: it holds nothing
                continue
            with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
                _look(found, view, geometry, wanted)
    return found


def _look(
    found: Snapshot, view: mmap.mmap, geometry: ExtentGeometry, wanted: frozenset[bytes]
) -> None:
    size = geometry.num_slots * RECORD_DTYPE.itemsize
    blob = view[RECORDS_OFFSET_BYTES : RECORDS_OFFSET_BYTES + size]
    rows = np.frombuffer(blob, RECORD_DTYPE)
    whole = (checksums(rows) == rows["checksum"]) & (rows["state"] == STATE_HELD)
    keys = rows["key"][whole].tobytes()
    mine = found.held.setdefault(bytes(geometry.fingerprint), set())
    mine.update(keys[at : at + 16] for at in range(0, len(keys), 16))
    for slot in np.flatnonzero(~whole).tolist():
        begin = geometry.slot_offset_bytes(slot)
        key = view[begin : begin + 16]
        if key in wanted:
            found.begun += 1
            page = np.frombuffer(view[begin : begin + geometry.payload_bytes], np.uint8)
            found.torn += num_wrong(page[None], np.frombuffer(key, np.uint64)[None])
