"""Book and log together: whatever cannot be written is not half written, and comes back whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from server.tiers.disk.files import Files
from server.tiers.disk.troubles import Troubles
from server.tiers.ledger import pages as modules
from server.tiers.ledger.book import Book, BookUnusableError
from server.tiers.ledger.pages import LedgerError, Pages
from server.tiers.ledger.rows import Row

ROW = Row(10, 1, 1, b"s" * 16)


def packed(number: int) -> bytes:
    return b"f" * 16 + number.to_bytes(20, "big")


def opened(folder: Path, files: Files | None = None) -> Pages:
    return Pages(files or Files(), str(folder), 1000, Troubles("x"))


def test_what_was_written_is_there_without_a_commit(tmp_path: Path) -> None:
    pages = opened(tmp_path)
    pages.write([(packed(1), ROW), (packed(2), ROW._replace(stamp=9))], 9)
    assert pages.has_changes
    pages.write([], 9)
    pages.close()
    pages.close()
    pages = opened(tmp_path)
    assert (pages.book.count, pages.book.clock, pages.has_changes) == (2, 9, False)
    pages.close()


def test_a_long_log_is_committed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MAX_LOG_BYTES", 200)
    pages = opened(tmp_path)
    pages.write([(packed(1), ROW)], 1)
    was_kept = pages.has_changes
    pages.write([(packed(n), ROW._replace(stamp=n)) for n in range(2, 9)], 9)
    assert (was_kept, pages.has_changes) == (True, False)
    pages.close()


class FullFiles(Files):
    """No room for a write while it is full."""

    is_full = False

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwritev(fd, buffers, offset)


def test_where_the_log_has_no_room_nothing_changes(tmp_path: Path) -> None:
    files = FullFiles()
    pages = opened(tmp_path, files)
    files.is_full = True
    with pytest.raises(LedgerError, match="No space left on device: make room on its file system"):
        pages.write([(packed(1), ROW)], 1)
    assert (pages.book.count, pages.is_open) == (0, True)
    with pytest.raises(LedgerError, match="No space"):
        pages.try_out()
    files.is_full = False
    pages.write([(packed(1), ROW)], 1)
    assert pages.book.count == 1
    assert "No space" in pages.trouble, "a short change may find room where others do not"
    pages.try_out()
    assert not pages.trouble
    pages.close()


def _written(pages: Pages) -> None:
    pages.write([(packed(2), ROW._replace(stamp=2))], 2)
    pages.commit(2)


@pytest.mark.parametrize("what", ["apply", "commit"])
def test_a_book_that_cannot_be_written_is_closed_and_comes_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def broken(*words: object) -> None:
        raise BookUnusableError("no room on the disk")

    pages = opened(tmp_path)
    pages.write([(packed(1), ROW)], 1)
    monkeypatch.setattr(pages.book, what, broken)
    with pytest.raises(LedgerError, match="no room on the disk"):
        _written(pages)
    assert not pages.is_open
    pages = opened(tmp_path)
    assert pages.book.count == 2
    pages.close()


class SmallFiles(Files):
    """A file system of which nearly nothing is left."""

    def room(self, path: str) -> tuple[int, int]:
        return 1 << 40, 1 << 20


def test_a_full_file_system_is_named_where_lmdb_says_that_input_and_output_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*words: object) -> None:
        raise BookUnusableError("mdb_txn_commit: Input/output error")

    monkeypatch.setattr(Book, "commit", broken)
    with pytest.raises(LedgerError, match="error; its file system is full, or nearly: make"):
        opened(tmp_path, SmallFiles())
    with pytest.raises(LedgerError, match="output error; where that stays so move the folder"):
        opened(tmp_path)
