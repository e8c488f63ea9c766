"""What namespaces a folder has values of: a small file for each.

Purpose: after the machine started anew nobody else knows what the fingerprints in the values' names
mean; the description is what a server needs to load them before any engine comes. It is not
believed: whoever reads it compares it with its fingerprint. Must not know: what is in a
description. Runs in: the porter's worker threads.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict

from server.tiers.disk.files import BLOCK_BYTES, Files, blocks

FOLDER = "namespaces"

MAX_TEXT_BYTES = 32_768

_NAME = re.compile(r"[0-9a-f]{32}")
_UNFINISHED = ".new-"


class Described:
    """The files."""

    def __init__(self, files: Files, folder: str, max_bytes: int) -> None:
        """Looks at nothing yet.

        Args:
            files: the system calls.
            folder: of the tier.
            max_bytes: most that all of them may take; the ones kept longest ago go first.
        """
        self._files = files
        self._folder = os.path.join(folder, FOLDER)
        self._max_bytes = max_bytes
        self._token = os.urandom(6).hex()
        self._lock = threading.Lock()
        #: What was kept since the start, for a folder that is made anew.
        self._texts: OrderedDict[bytes, bytes] = OrderedDict()

    def keep(self, fingerprint: bytes, text: bytes) -> None:
        """Writes a description, whole or not at all; one that is there counts as kept now.

        Args:
            fingerprint: 16 bytes.
            text: at most MAX_TEXT_BYTES.

        Raises:
            OSError: it cannot be written.
        """
        if not 0 < len(text) <= MAX_TEXT_BYTES:
            return
        with self._lock:
            self._note(fingerprint, text)
            self._files.make_folder(self._folder)
            self._make_way(fingerprint.hex(), blocks(len(text)))
            self._write(self._path(fingerprint), text)

    def restore(self) -> None:
        """Writes again what was kept since the start: nobody tells it twice, and values go on.

        Raises:
            OSError: some cannot be written.
        """
        with self._lock:
            for fingerprint, text in self._texts.items():
                self._files.make_folder(self._folder)
                self._write(self._path(fingerprint), text)

    def remember(self, fingerprint: bytes, text: bytes) -> None:
        """Takes a description that cannot be kept now, for ``restore``.

        Args:
            fingerprint: 16 bytes.
            text: at most MAX_TEXT_BYTES.
        """
        if 0 < len(text) <= MAX_TEXT_BYTES:
            with self._lock:
                self._note(fingerprint, text)

    def _note(self, fingerprint: bytes, text: bytes) -> None:
        self._texts[fingerprint] = text
        self._texts.move_to_end(fingerprint)
        used = sum(blocks(len(one)) for one in self._texts.values())
        while used > self._max_bytes:
            _, former = self._texts.popitem(last=False)
            used -= blocks(len(former))

    def _write(self, path: str, text: bytes) -> None:
        fresh = os.path.join(self._folder, f"{_UNFINISHED}{self._token}")
        fd = self._files.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            try:
                if self._files.pwritev(fd, [memoryview(text)], 0) != len(text):
                    raise OSError(28, "No space left on device")
                self._files.sync(fd)
            finally:
                self._files.close(fd)
            self._files.rename(fresh, path)
        except OSError:
            try:
                self._files.remove(fresh)
            except OSError:
                pass
            raise

    def _make_way(self, name: str, num_bytes: int) -> None:
        kept: list[tuple[int, int, str]] = []
        for other in self._files.names(self._folder):
            path = os.path.join(self._folder, other)
            is_ours = _NAME.fullmatch(other) or other.startswith(_UNFINISHED)
            if other == name or not is_ours:
                continue
            try:
                found = self._files.stat(path)
            except OSError:
                continue
            kept.append((found.st_mtime_ns, blocks(found.st_size), path))
        used = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if used + num_bytes <= self._max_bytes:
                return
            self._files.remove(path)
            used -= size

    def forget(self, fingerprint: bytes) -> None:
        """Removes a description; one that is gone, or cannot be removed, does not matter."""
        with self._lock:
            self._texts.pop(fingerprint, None)
        try:
            self._files.remove(self._path(fingerprint))
        except OSError:
            pass

    def all(self) -> list[bytes]:
        """Fingerprints of what is described, those kept last first.

        Raises:
            OSError: the folder cannot be read.
        """
        found: list[tuple[int, str]] = []
        try:
            names = self._files.names(self._folder)
        except FileNotFoundError:
            return []
        for name in names:
            if _NAME.fullmatch(name):
                try:
                    path = os.path.join(self._folder, name)
                    found.append((self._files.stat(path).st_mtime_ns, name))
                except FileNotFoundError:
                    pass  # another server forgot it
        return [bytes.fromhex(name) for _, name in sorted(found, reverse=True)]

    def text(self, fingerprint: bytes) -> bytes:
        """A description, or empty where there is none.

        Raises:
            OSError: it cannot be read.
        """
        try:
            # Without O_NONBLOCK a pipe that somebody put there would keep us waiting.
            fd = self._files.open(self._path(fingerprint), os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return b""
        try:
            room = bytearray(MAX_TEXT_BYTES + BLOCK_BYTES)
            read = self._files.preadv(fd, [memoryview(room)], 0)
        finally:
            self._files.close(fd)
        return bytes(room[:read]) if read <= MAX_TEXT_BYTES else b""

    def _path(self, fingerprint: bytes) -> str:
        return os.path.join(self._folder, fingerprint.hex())
