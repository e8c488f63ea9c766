"""The index file: which value is in which slot, as it outlives the porter.

Purpose: an lmdb file that is read whole once and from then on only written, a transaction for many
changes, each of them on the disk before the next begins (``metasync=False`` leaves the last one to
chance, and none half done). A file that is not ours, torn or shorter than it says is made anew:
then nothing is known to be stored, which costs hits and nothing else. Must not know: files of
values. Runs in: the porter, at start and then in the journal's thread.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import lmdb
import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES
from server.tiers.disk.entries import Entry
from server.tiers.disk.plan import NAME_BYTES

FORMAT = b"kvkeep disk index 2"
FORMER = b"kvkeep disk index 1"
"""Without salts; it is read, and written on as the one above."""

_BARE = [("segment", "<u4"), ("slot", "<u4"), ("uses", "<u4"), ("stamp", "<u8")]
ENTRY_DTYPE = np.dtype([*_BARE, ("salt", f"V{ID_BYTES}")])
"""An entry without a salt is written without that field."""

_BARE_BYTES = np.dtype(_BARE).itemsize

Rows = tuple[NDArray[np.uint8], NDArray[np.void]]
"""Names uint8[n, NAME_BYTES] and ENTRY_DTYPE[n]."""

_FORMAT_KEY = b"format"
_ROWS = 65_536


class IndexUnusableError(Exception):
    """Not our file, or not whole."""


class Index:
    """One index file, open."""

    def __init__(self, folder: str, map_bytes: int) -> None:
        """Opens it, or makes it when there is none.

        Args:
            folder: of the index alone.
            map_bytes: most bytes it may take.

        Raises:
            IndexUnusableError: it is not ours or not whole.
            OSError: the folder cannot be made.
        """
        os.makedirs(folder, 0o700, exist_ok=True)
        path = os.path.join(folder, "data.mdb")
        try:
            # Our own lock keeps others away, and nobody reads while the one thread writes.
            self._environment = lmdb.open(
                folder,
                map_size=map_bytes,
                mode=0o600,
                lock=False,
                metasync=False,
                readahead=False,
                max_dbs=0,
            )
        except lmdb.Error as error:
            raise IndexUnusableError(str(error)) from error
        try:
            self._check(path)
        except (lmdb.Error, OSError, IndexUnusableError) as error:
            self._environment.close()
            raise IndexUnusableError(str(error)) from error

    def _check(self, path: str) -> None:
        pages = self._environment.info()["last_pgno"] + 1
        # Where the file is shorter than its map, a look at the map would end the process.
        if os.stat(path).st_size < pages * self._environment.stat()["psize"]:
            raise IndexUnusableError("the file is shorter than it says")
        with self._environment.begin(write=True) as transaction:
            found = transaction.get(_FORMAT_KEY)
            if found is None and not transaction.stat()["entries"]:
                transaction.put(_FORMAT_KEY, FORMAT)
            elif found not in (FORMAT, FORMER):
                raise IndexUnusableError("its format is another")

    def rows(self) -> Iterator[Rows]:
        """All entries, some ten thousand at a time.

        Raises:
            IndexUnusableError: an entry is none.
        """
        try:
            with self._environment.begin() as transaction:
                yield from _rows(iter(transaction.cursor()))
        except lmdb.Error as error:
            raise IndexUnusableError(str(error)) from error

    def prove(self, changes: Mapping[bytes, Entry | None]) -> None:
        """Writes at the start, where a file that cannot be written had better show itself.

        Args:
            changes: as for ``write``; there may be none.

        Raises:
            IndexUnusableError: it cannot.
        """
        try:
            with self._environment.begin(write=True) as transaction:
                transaction.put(_FORMAT_KEY, FORMAT)
            self.write(changes)
        except lmdb.Error as error:
            raise IndexUnusableError(str(error)) from error

    def write(self, changes: Mapping[bytes, Entry | None]) -> None:
        """Enters and takes out, all or nothing; returns when it is on the disk.

        Args:
            changes: by name; None for what goes.

        Raises:
            lmdb.Error: it could not.
        """
        with self._environment.begin(write=True) as transaction:
            for name in sorted(changes):
                entry = changes[name]
                if entry is None:
                    transaction.delete(name)
                else:
                    transaction.put(name, packed(entry))

    def sync(self) -> None:
        """Returns when the last transaction is on the disk, too."""
        self._environment.sync(True)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._environment.close()


def packed(entry: Entry) -> bytes:
    """As it stands in the file."""
    row = np.array([(*entry[:4], entry.salt)], ENTRY_DTYPE).tobytes()
    return row if entry.salt else row[:_BARE_BYTES]


def unpacked(row: np.void) -> Entry:
    """The entry of ENTRY_DTYPE."""
    salt = row["salt"].tobytes()
    segment, slot, uses, stamp = (int(row[name]) for name, _ in _BARE)
    return Entry(segment, slot, uses, stamp, salt if any(salt) else b"")


def _rows(items: Iterator[tuple[bytes, bytes]]) -> Iterator[Rows]:
    while some := list(islice(items, _ROWS)):
        names = [name for name, _ in some if name != _FORMAT_KEY]
        entries = [
            entry.ljust(ENTRY_DTYPE.itemsize, b"\0") if len(entry) == _BARE_BYTES else entry
            for name, entry in some
            if name != _FORMAT_KEY
        ]
        if not _all_long(names, NAME_BYTES) or not _all_long(entries, ENTRY_DTYPE.itemsize):
            raise IndexUnusableError("an entry has another length")
        yield (
            np.frombuffer(b"".join(names), np.uint8).reshape(-1, NAME_BYTES),
            np.frombuffer(b"".join(entries), ENTRY_DTYPE),
        )


def _all_long(values: Iterable[bytes], length: int) -> bool:
    return all(len(one) == length for one in values)


def remove(folder: str) -> None:
    """Removes an index file, whatever it is; what cannot be removed is left."""
    if os.path.islink(folder) or os.path.isfile(folder):
        try:
            os.unlink(folder)
        except OSError:
            return
    shutil.rmtree(folder, ignore_errors=True)
