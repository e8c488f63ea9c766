from __future__ import annotations

from pathlib import Path

import numpy as np

from protocol.extents import (
    RECORD_DTYPE,
    RECORDS_OFFSET_BYTES,
    STATE_HELD,
    checksums,
    cut,
    pack_header,
)
from protocol.ids import ArenaId, ExtentId, Fingerprint
from tests.restarts.content import MAIN, PAGE_BYTES, as_bytes, keys_of, pages
from tests.restarts.snapshot import take

NAME = Fingerprint(b"f" * 16)


def test_held_begun_and_torn_are_told_apart(tmp_path: Path) -> None:
    cells = cut(ExtentId(1), NAME, 0, 1, PAGE_BYTES, 64 << 10)
    keys = keys_of(MAIN, 1, 5)
    content = pages(keys, PAGE_BYTES).view(np.uint8).copy()
    content[4, 2048:] = 0  # the copy of the last had come half way
    rows = np.zeros(cells.num_slots, RECORD_DTYPE)
    rows["key"][:3] = keys[:3].view("V16")[:, 0]
    rows["state"][:3] = STATE_HELD
    rows["checksum"] = checksums(rows)
    rows["checksum"][2:] = 0  # void, though the rest of the record is still there
    blob = bytearray(cells.file_bytes)
    blob[:128] = pack_header(cells, ArenaId(b"a" * 16))
    blob[RECORDS_OFFSET_BYTES : RECORDS_OFFSET_BYTES + rows.nbytes] = rows.tobytes()
    for slot, page in enumerate(content):
        begin = cells.slot_offset_bytes(slot)
        blob[begin : begin + PAGE_BYTES] = page.tobytes()
    (tmp_path / "00000001.extent").write_bytes(blob)
    (tmp_path / "00000002.extent").write_bytes(bytes(4096))

    told = as_bytes(keys)
    found = take(tmp_path, told[3:])
    assert found.held == {bytes(NAME): set(told[:2])}
    assert (found.num_held, found.begun, found.torn) == (2, 2, 1)
    assert found.files == {"00000001.extent", "00000002.extent"}
    assert take(tmp_path, []).begun == 0
    assert take(tmp_path, told[2:3]).begun == 1
