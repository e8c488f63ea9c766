"""Changes that the book's last commit does not have yet, where a kill cannot reach them.

Purpose: each change is in this file before the store or the book knows it, without waiting for the
disk: a killed porter loses nothing. After a crash of the machine the file may be stale or torn; a
record has a number and a hash, and what comes behind the first that is wrong is left out. Must not
know: the book, stores. Runs in: the porter; the ledger's lock guards it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct

import xxhash

from server.tiers.disk.files import Files, write_all
from server.tiers.ledger.rows import NAME, ROW, Change, Row, pack_row, unpack_row

_RECORD = Struct(f"<Q?{NAME.size}s{ROW.size}s")
_HASH = Struct("<I")
RECORD_BYTES = _RECORD.size + _HASH.size
_NO_ROW = Row(0, 0, 0)
_TRIED_BYTES = 64 * RECORD_BYTES


class Log:
    """One file of changes.

    Attributes:
        number: of the last change.
        num_bytes: of the file.
    """

    def __init__(self, files: Files, path: str) -> None:
        """Opens it, or makes it.

        Args:
            files: the system calls.
            path: of the file.

        Raises:
            OSError: it cannot be opened.
        """
        self._files = files
        self._fd = files.open(path, os.O_RDWR | os.O_CREAT)
        self.number = 0
        self.num_bytes = 0
        self._is_torn = False

    def read(self, after: int) -> Iterator[Change]:
        """Changes that an earlier run left, in order.

        Args:
            after: number of the last one that the book has.

        Raises:
            OSError: it cannot be read.
        """
        self.number = after
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            while len(data := file.read(RECORD_BYTES)) == RECORD_BYTES:
                body = data[: _RECORD.size]
                if _HASH.unpack_from(data, _RECORD.size)[0] != xxhash.xxh32_intdigest(body):
                    break
                number, is_there, name, row = _RECORD.unpack(body)
                if number <= after:
                    continue  # killed after a commit and before the file was emptied
                if number != self.number + 1:
                    break
                self.number = number
                yield name, unpack_row(row) if is_there else None

    def append(self, changes: Sequence[Change]) -> None:
        """Keeps changes: a kill after this does not undo them.

        Args:
            changes: in order.

        Raises:
            OSError: none of them is kept.
        """
        if self._is_torn:
            self._cut()
        records = bytearray()
        for number, (name, row) in enumerate(changes, self.number + 1):
            body = _RECORD.pack(number, row is not None, name, pack_row(row or _NO_ROW))
            records += body + _HASH.pack(xxhash.xxh32_intdigest(body))
        self._write(records)
        self.number += len(changes)
        self.num_bytes += len(records)

    def try_out(self) -> None:
        """Writes something that is no change, and takes it back.

        Raises:
            OSError: nothing can be appended.
        """
        self._write(bytes(_TRIED_BYTES))
        self._cut()

    def _write(self, data: bytes | bytearray) -> None:
        try:
            write_all(self._files, self._fd, [memoryview(data)], self.num_bytes)
        except OSError:
            # A record that was kept whole would be read behind a shorter one that comes next.
            self._is_torn = True
            with suppress(OSError):
                self._cut()
            raise

    def _cut(self) -> None:
        os.ftruncate(self._fd, self.num_bytes)
        self._is_torn = False

    def empty(self) -> None:
        """The book has all of it.

        Raises:
            OSError: it could not be emptied; what it has does no harm.
        """
        self.num_bytes = 0
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Closes the file."""
        self._files.close(self._fd)
