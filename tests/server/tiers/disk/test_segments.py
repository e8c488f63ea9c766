"""Segment files: their names, their slots, what is adopted of an earlier run."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.tiers.disk import segments
from server.tiers.disk.plan import NAME_BYTES
from server.tiers.disk.segments import State
from tests.server.tiers.disk.rig import FaultyFiles

SLOT = 8192


@given(st.integers(0, (1 << 32) - 1), st.integers(2, 1 << 20))
def test_names_are_read_back(number: int, pages: int) -> None:
    name = segments.file_name(number, pages * 4096)
    assert segments.parse_file_name(name) == (number, pages * 4096)


@pytest.mark.parametrize(
    "name",
    [
        *("", "lock", "0000000g-8192", "00000001-8193", "00000001-4096", "1-8192"),
        *("00000001-08192", "00000001-8192.old", "0000000A-8192", "00000001-", "+0000001-8192"),
    ],
)
def test_other_files_are_no_segments(name: str) -> None:
    assert segments.parse_file_name(name) is None


def test_blocks_are_there_before_they_are_written(tmp_path: Path) -> None:
    segment = segments.create(FaultyFiles(), str(tmp_path), 7, SLOT, 100)
    status = os.stat(segment.path)
    assert status.st_size == segment.length == 100 * SLOT
    assert status.st_blocks * 512 >= 100 * SLOT
    assert status.st_mode & 0o777 == 0o600
    os.close(segment.fd)


def test_nothing_is_left_of_one_that_there_is_no_room_for(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.fail("allocate", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        segments.create(files, str(tmp_path), 7, SLOT, 100)
    assert list(tmp_path.iterdir()) == []


def test_slots_are_taken_once_and_given_back(tmp_path: Path) -> None:
    segment = segments.create(FaultyFiles(), str(tmp_path), 1, SLOT, 3)
    assert [segment.take() for _ in range(3)] == [0, 1, 2]
    assert not segment.has_free
    segment.free(1)
    assert segment.states.tolist() == [State.WRITING, State.FREE, State.WRITING]
    assert segment.take() == 1
    assert segment.offset(2) == 2 * SLOT
    os.close(segment.fd)


def test_what_an_index_says_is_adopted(tmp_path: Path) -> None:
    files = FaultyFiles()
    made = segments.create(files, str(tmp_path), 1, SLOT, 5)
    os.close(made.fd)
    os.truncate(made.path, 4 * SLOT + 100)
    segment = segments.reopen(files, str(tmp_path), os.path.basename(made.path))
    assert segment is not None
    assert (segment.number, segment.slot_bytes, segment.count) == (1, SLOT, 4)
    names = np.arange(2 * NAME_BYTES, dtype=np.uint8).reshape(2, NAME_BYTES)
    stamps, uses = np.array([5, 6], np.uint64), np.array([1, 2], np.uint32)
    segment.adopt(np.array([1]), names[:1], stamps[:1], uses[:1], uses[:1])
    segment.adopt(np.array([3]), names[1:], stamps[1:], uses[1:], uses[1:])
    segment.adopted()
    assert segment.used_names() == [bytes(range(36)), bytes(range(36, 72))]
    assert (segment.used, segment.take(), segment.take(), segment.has_free) == (2, 0, 2, False)
    segment.empty()
    assert segment.used_names() == []
    assert [segment.take() for _ in range(4)] == [0, 1, 2, 3]
    os.close(segment.fd)


def test_a_file_that_is_no_segment_is_left(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x")
    assert segments.reopen(FaultyFiles(), str(tmp_path), "notes") is None
