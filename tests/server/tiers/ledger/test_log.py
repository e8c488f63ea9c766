"""The log: what was appended is read again, up to what is torn; what the book has is left out."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from server.tiers.disk.files import Files
from server.tiers.ledger.log import RECORD_BYTES, Log
from server.tiers.ledger.rows import Change, Row

ONE: Change = (b"1" * 36, Row(10, 1, 0, b"s" * 16))
TWO: Change = (b"2" * 36, Row(20, 2, 3))
GONE: Change = (b"1" * 36, None)


def read(path: Path, after: int = 0) -> tuple[list[Change], int]:
    log = Log(Files(), str(path))
    found = list(log.read(after))
    log.close()
    return found, log.number


def test_changes_are_read_again_in_order(tmp_path: Path) -> None:
    log = Log(Files(), str(tmp_path / "log"))
    assert list(log.read(0)) == []
    log.append([ONE, TWO])
    log.append([GONE])
    assert (log.number, log.num_bytes) == (3, 3 * RECORD_BYTES)
    assert read(tmp_path / "log") == ([ONE, TWO, GONE], 3)
    assert read(tmp_path / "log", after=2) == ([GONE], 3)
    assert read(tmp_path / "log", after=3) == ([], 3)
    log.empty()
    log.append([TWO])
    log.close()
    assert read(tmp_path / "log", after=3) == ([TWO], 4)
    assert read(tmp_path / "log", after=2) == ([], 2), "one between is missing"


@pytest.mark.parametrize("torn", [1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1])
def test_what_is_torn_off_is_left_out(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "log"
    log = Log(Files(), str(path))
    log.append([ONE, TWO, GONE])
    log.close()
    os.truncate(path, 3 * RECORD_BYTES - torn)
    assert read(path)[0] == [ONE, TWO, GONE][: 3 - -(-torn // RECORD_BYTES)]


def test_nothing_behind_a_byte_that_is_wrong_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(Files(), str(path))
    log.append([ONE, TWO, GONE])
    log.close()
    data = bytearray(path.read_bytes())
    data[RECORD_BYTES + 20] ^= 1
    path.write_bytes(data)
    assert read(path) == ([ONE], 1)


class FullFiles(Files):
    """Half of each write, and then no room."""

    is_full = False

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if not self.is_full:
            return super().pwritev(fd, buffers, offset)
        super().pwritev(fd, [buffers[0][: len(buffers[0]) // 2]], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_could_not_be_appended_is_as_if_it_never_was(tmp_path: Path) -> None:
    files = FullFiles()
    log = Log(files, str(tmp_path / "log"))
    log.append([ONE])
    files.is_full = True
    with pytest.raises(OSError, match="No space"):
        log.append([GONE, GONE])
    files.is_full = False
    log.append([TWO])
    log.close()
    assert read(tmp_path / "log") == ([ONE, TWO], 2)


@pytest.mark.parametrize("can_be_cut", [True, False])
def test_records_of_what_could_not_be_appended_do_not_follow_what_is_appended_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_be_cut: bool
) -> None:
    files = FullFiles()
    log = Log(files, str(tmp_path / "log"))
    log.append([ONE])
    files.is_full = True
    with monkeypatch.context() as patch:
        if not can_be_cut:
            patch.setattr(os, "ftruncate", _broken)
        with pytest.raises(OSError, match="No space"):
            log.append([TWO, GONE, GONE, TWO])  # two of them are whole
        files.is_full = False
        if not can_be_cut:
            with pytest.raises(OSError, match="broken"):
                log.append([TWO])
    log.append([TWO])
    log.close()
    assert read(tmp_path / "log") == ([ONE, TWO], 2)


def _broken(fd: int, length: int) -> None:
    raise OSError(errno.EIO, "broken")


def test_to_try_whether_there_is_room_leaves_nothing_behind(tmp_path: Path) -> None:
    files = FullFiles()
    log = Log(files, str(tmp_path / "log"))
    log.append([ONE])
    log.try_out()
    files.is_full = True
    with pytest.raises(OSError, match="No space"):
        log.try_out()
    files.is_full = False
    log.append([TWO])
    log.close()
    assert read(tmp_path / "log") == ([ONE, TWO], 2)
    assert (tmp_path / "log").stat().st_size == 2 * RECORD_BYTES
