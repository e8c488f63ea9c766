"""What a shared folder has, looked up in the folder: nobody keeps a list of it.

Must not know: what is kept, what goes first. Runs in: the porter's worker threads.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from heapq import nlargest

from server.tiers.disk.files import Files
from server.tiers.disk.marks import Marks, tag_in, tag_of
from server.tiers.interface import Name

FOLDER = re.compile(r"[0-9a-f]{32}")
FAN = re.compile(r"[0-9a-f]{2}")
VALUE = re.compile(r"[0-9a-f]{32}-[0-9]{1,10}")

_LIST_S = 4.0
_FIND_S = 8.0


class Listed:
    """Looks at names and times of files, and into as few as it can."""

    def __init__(self, files: Files, folder: str, marks: Marks) -> None:
        """Looks at nothing yet.

        Args:
            files: the system calls.
            folder: the shared one.
            marks: what files say of their salts.
        """
        self._files = files
        self._folder = folder
        self._marks = marks

    def latest(self, fingerprint: bytes, shard: int, most: int) -> list[bytes]:
        """Keys of the values of one shard of a namespace, those used last first.

        Args:
            fingerprint: 16 bytes.
            shard: which.
            most: keys wanted, at most.

        Returns:
            Those found within some seconds, for somebody waits: not all of a very large folder.
        """
        folder, suffix = os.path.join(self._folder, fingerprint.hex()), f"-{shard}"
        found = nlargest(most, self._used(folder, suffix, time.monotonic() + _LIST_S))
        return [bytes.fromhex(name[: -len(suffix)]) for _, name in found]

    def namespaces(self) -> set[bytes]:
        """Fingerprints of those that have a folder.

        Raises:
            OSError: nobody knows.
        """
        return {bytes.fromhex(name) for name in self._there(self._folder) if FOLDER.fullmatch(name)}

    def of_salt(self, salt: bytes, most: int) -> list[Name]:
        """Values of any server that were stored first under a salt.

        Args:
            salt: digest of it.
            most: names wanted, at most.

        Raises:
            OSError: a file or folder cannot be read, or there are more than can be looked at within
                some seconds: so nobody knows.
        """
        found: list[Name] = []
        tag, end_s = tag_of(salt), time.monotonic() + _FIND_S
        for fingerprint in sorted(self.namespaces()):
            space = os.path.join(self._folder, fingerprint.hex())
            for fan in sorted(filter(FAN.fullmatch, self._there(space))):
                folder = os.path.join(space, fan)
                _be_before(end_s)
                for name in filter(VALUE.fullmatch, self._there(folder)):
                    _be_before(end_s)  # a folder may have thousands, over a slow network
                    if self._is_of(salt, tag, os.path.join(folder, name)):
                        key, _, shard = name.partition("-")
                        found.append(Name(fingerprint, bytes.fromhex(key), int(shard)))
                        if len(found) == most:
                            return found
        return found

    def _is_of(self, salt: bytes, tag: int, path: str) -> bool:
        try:
            file_bytes = self._files.stat(path).st_size
            return tag_in(file_bytes) == tag and self._marks.read(path, file_bytes) == salt
        except FileNotFoundError:
            return False  # another server removed it

    def _used(self, folder: str, suffix: str, end_s: float) -> Iterator[tuple[int, str]]:
        for fan in self._names(folder):
            if time.monotonic() > end_s:
                return
            for name in self._names(os.path.join(folder, fan)) if FAN.fullmatch(fan) else ():
                if name.endswith(suffix) and VALUE.fullmatch(name):
                    try:
                        path = os.path.join(folder, fan, name)
                        yield self._files.stat(path).st_mtime_ns, name
                    except OSError:
                        pass  # another server removed it

    def _names(self, folder: str) -> list[str]:
        try:
            return self._files.names(folder)
        except OSError:
            return []

    def _there(self, folder: str) -> list[str]:
        try:
            return self._files.names(folder)
        except FileNotFoundError:
            return []


def _be_before(end_s: float) -> None:
    if time.monotonic() > end_s:
        raise OSError(errno.ETIMEDOUT, "too many files to look at")
