"""What the index file does not know yet, where a kill of the process cannot reach it.

Purpose: each change goes to a small file at once, without waiting for the disk: a killed porter
loses nothing that it answered. Two files take turns: while the changes in one are brought into the
index, new ones go to the other. After a crash of the machine they may be stale or torn; a record
has a hash, and where it leads to proves itself as every value does. Must not know: the index, the
catalog. Runs in: the porter, under the catalog's lock or at the start.
"""

from __future__ import annotations

import os
from struct import Struct

import xxhash

from server.tiers.disk.entries import Entry
from server.tiers.disk.files import Files
from server.tiers.disk.plan import NAME_BYTES
from server.tiers.disk.troubles import Troubles

NAMES = ("tail-0", "tail-1")

_GONE = Entry(0, 0, 0, 0)

_RECORD = Struct(f"<{NAME_BYTES}sIIIQ?16s7x")
_FORMER = Struct(f"<{NAME_BYTES}sIIIQ?7x")
_HASH = Struct("<I")
RECORD_BYTES = _RECORD.size + _HASH.size
_TURN = Struct("<8sQ")
_MAGIC = b"kvkdtai2"
_RECORDS = {_MAGIC: _RECORD, b"kvkdtail": _FORMER}
"""By what a file begins with; the former ones know no salts."""


class Tail:
    """The two files."""

    def __init__(self, files: Files, folder: str, most_bytes: int, troubles: Troubles) -> None:
        """Opens them, or makes them.

        Args:
            files: the system calls.
            folder: where they are.
            most_bytes: of both; what comes on top waits for the index alone.
            troubles: what could not be written is told there.

        Raises:
            OSError: they cannot be opened.
        """
        self._files = files
        self._troubles = troubles
        self._most_bytes = most_bytes // 2
        self._fds: list[int] = []
        try:
            for name in NAMES:
                path = os.path.join(folder, name)
                self._fds.append(files.open(path, os.O_RDWR | os.O_CREAT))
        except OSError:
            self.close()
            raise
        self._now = 0
        self._turns = 0
        self._length = 0

    def read(self) -> dict[bytes, Entry | None]:
        """What an earlier run left: the last change of each name, None for what went."""
        found = sorted(filter(None, map(self._read, self._fds)), key=lambda one: one[0])
        self._turns = found[-1][0] if found else 0
        changes: dict[bytes, Entry | None] = {}
        for _, record, records in found:
            step = record.size + _HASH.size
            for at in range(0, len(records) - step + 1, step):
                body = records[at : at + record.size]
                (hashed,) = _HASH.unpack_from(records, at + record.size)
                if hashed != xxhash.xxh32_intdigest(body):
                    break
                name, segment, slot, uses, stamp, is_there, *more = record.unpack(body)
                salt = more[0] if more and any(more[0]) else b""
                changes[name] = Entry(segment, slot, uses, stamp, salt) if is_there else None
        return changes

    def turn(self) -> None:
        """From now on changes go to the other file, whose own are in the index."""
        self._now, self._turns = 1 - self._now, self._turns + 1
        self._length = 0
        self._write(_TURN.pack(_MAGIC, self._turns), is_first=True)

    def note(self, name: bytes, entry: Entry | None) -> bool:
        """Keeps a change.

        Args:
            name: of the value.
            entry: None when it went.

        Returns:
            Whether there is room for as many more; it had better be brought into the index.
        """
        segment, slot, uses, stamp, salt = entry or _GONE
        body = _RECORD.pack(name, segment, slot, uses, stamp, entry is not None, salt)
        self._write(body + _HASH.pack(xxhash.xxh32_intdigest(body)))
        return self._length < self._most_bytes // 2

    def settle(self) -> None:
        """What is in the other file is in the index."""
        try:
            os.ftruncate(self._fds[1 - self._now], 0)
        except OSError as error:
            self._troubles.tell("write errors", error.strerror)

    def sync(self) -> None:
        """Returns when both are on the disk as they are; OSError when they cannot be."""
        for fd in self._fds:
            self._files.sync(fd)

    def close(self) -> None:
        """Closes both."""
        for fd in self._fds:
            self._files.close(fd)
        self._fds = []

    def _write(self, data: bytes, is_first: bool = False) -> None:
        if self._length + len(data) > self._most_bytes:
            return
        fd = self._fds[self._now]
        try:
            if is_first:
                os.ftruncate(fd, 0)
            self._files.pwritev(fd, [memoryview(data)], self._length)
        except OSError as error:
            self._troubles.tell("write errors", error.strerror)
            return
        self._length += len(data)

    def _read(self, fd: int) -> tuple[int, Struct, bytes] | None:
        try:
            data = os.pread(fd, self._most_bytes + RECORD_BYTES, 0)
        except OSError as error:
            self._troubles.tell("read errors", error.strerror)
            return None
        if len(data) < _TURN.size:
            return None
        magic, turns = _TURN.unpack_from(data)
        record = _RECORDS.get(magic)
        return None if record is None else (turns, record, data[_TURN.size :])
