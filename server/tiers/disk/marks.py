"""Under which salt a file of a shared folder was stored, told by the file alone.

Purpose: the salt's digest stands in the block before the value, behind the header, and some bytes
more than whole blocks at the file's end say that it does: how many more is a number that follows
from the digest. So a look at a file's length tells files without a salt, and nearly all of other
salts, from those that must be read. It comes and goes with the value, in one rename or removal.
Must not know: quotas, what is in a header. Runs in: the porter's worker threads and the keeper's.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from protocol.ids import ID_BYTES
from server.tiers.disk.files import BLOCK_BYTES, Files, HeaderBlocks, open_direct, read_all
from server.tiers.interface import HEADER_BYTES

MAX_KNOWN = 1 << 18
"""Files whose salt is remembered from one walk to the next, some 100 bytes each."""


def tag_of(salt: bytes) -> int:
    """By how many bytes a file is longer than whole blocks; 0 for no salt.

    Args:
        salt: digest of it, or empty.
    """
    return 1 + int.from_bytes(salt[:8], "big") % (BLOCK_BYTES - 1) if salt else 0


def tag_in(file_bytes: int) -> int:
    """The same, of a file's length."""
    return file_bytes % BLOCK_BYTES


class Marks:
    """What files say of their salts, and which of them matter.

    Attributes:
        salts: digests of those that are looked for.
    """

    def __init__(self, files: Files) -> None:
        """Looks for none yet.

        Args:
            files: the system calls.
        """
        self._files = files
        self._blocks = HeaderBlocks()
        self.salts: frozenset[bytes] = frozenset()
        self._tags: frozenset[int] = frozenset()
        #: Salts of files that were read, by hashes of their paths; empty for none that matters.
        self._known: dict[int, bytes] = {}
        self._fresh: dict[int, bytes] | None = None

    def look_for(self, salts: Collection[bytes]) -> None:
        """Says which salts matter from now on.

        Args:
            salts: digests.
        """
        self._known, self._fresh = {}, None
        self.salts = frozenset(salts)
        self._tags = frozenset(map(tag_of, self.salts))

    def begin(self) -> None:
        """A walk begins: it looks at all files."""
        self._fresh = {}

    def end(self) -> None:
        """It is over: what it did not see is forgotten."""
        if self._fresh is not None:
            self._known, self._fresh = self._fresh, None

    def matters(self, tag: int) -> bool:
        """Whether a file with this tag may be of a salt that is looked for."""
        return tag in self._tags

    def salt(self, path: str, file_bytes: int) -> bytes:
        """The salt of a file if it matters, else empty. Reads files at most whose length says so.

        Args:
            path: of the file.
            file_bytes: its length.

        Raises:
            OSError: it cannot be read; FileNotFoundError when it is gone.
        """
        if not self.matters(tag_in(file_bytes)):
            return b""
        fresh, number = self._fresh, hash((path, file_bytes))
        found = self._known.get(number)
        if found is None:
            salts, known = self.salts, self._known
            found = self.read(path, file_bytes)
            found = found if found in salts else b""
            if len(known) < MAX_KNOWN and salts is self.salts:
                known[number] = found
        if fresh is not None and len(fresh) < MAX_KNOWN:
            fresh[number] = found
        return found

    def read(self, path: str, file_bytes: int) -> bytes:
        """The salt that a file names, empty for none, or for one that does not fit its length.

        Args:
            path: of the file.
            file_bytes: its length.

        Raises:
            OSError: it cannot be read.
        """
        if not tag_in(file_bytes):
            return b""
        block = self._blocks.block
        fd, is_direct = open_direct(self._files, path, os.O_RDONLY)
        try:
            read = read_all(self._files, fd, [block], 0)
            if not is_direct:
                self._files.forget_cached(fd)
        finally:
            self._files.close(fd)
        salt = bytes(block[HEADER_BYTES : HEADER_BYTES + ID_BYTES])
        is_one = read == BLOCK_BYTES and any(salt) and tag_of(salt) == tag_in(file_bytes)
        return salt if is_one else b""
