"""The lock by which one server alone uses a slab's folder.

Purpose: two servers in one folder would overwrite each other's slots. The kernel's lock tells a
live owner from a dead one, and its file tells whether the folder is still the one that was opened.
Must not know: what else is in the folder. Runs in: the porter.
"""

from __future__ import annotations

import fcntl
import os
import time

from server.tiers.disk.files import Files
from server.tiers.interface import TierError

NAME = "lock"
DYING_S = 2.0
"""How long an owner's last breath is waited for."""

_PAUSE_S = 0.02
_MAX_OWNER_BYTES = 200


class InUseError(TierError):
    """Somebody else has the folder.

    Args:
        text: for people.
        owner: who, in parentheses and behind a space; empty where the file does not say.
    """

    def __init__(self, text: str, owner: str) -> None:
        super().__init__(text)
        self.owner = owner


class Hold:
    """The lock, until ``release``."""

    def __init__(self, files: Files, folder: str, dying_s: float = DYING_S) -> None:
        """Takes it.

        Args:
            files: the system calls.
            folder: that is to be held; it is there.
            dying_s: how long to wait for an owner that is about to go.

        Raises:
            InUseError: another process holds it.
            OSError: the file cannot be made.
        """
        self._files = files
        self._path = os.path.join(folder, NAME)
        self._fd = files.open(self._path, os.O_RDWR | os.O_CREAT)
        give_up_s = time.monotonic() + dying_s
        while not self._is_taken():
            if time.monotonic() >= give_up_s:
                owner = _owner(self._fd)
                files.close(self._fd)
                raise InUseError(
                    f"{folder} is in use by another server{owner}; give each a folder of its own, "
                    "or layout=files where several share one",
                    owner,
                )
            time.sleep(_PAUSE_S)
        self.prove()

    def _is_taken(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_held(self) -> bool:
        """Whether the folder still has the file that is locked: somebody may have removed it."""
        try:
            there, ours = self._files.stat(self._path), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def prove(self) -> None:
        """Writes the owner into the file and waits for the disk.

        Raises:
            OSError: the file system takes no writes.
        """
        # The server has this process as its child, and is what an operator looks for.
        owner = f"pid {os.getppid()}, its porter {os.getpid()}\n".encode().ljust(_MAX_OWNER_BYTES)
        self._files.pwritev(self._fd, [memoryview(owner)], 0)
        self._files.sync(self._fd)

    def release(self) -> None:
        """Lets go. The file stays: removing it would race with the next owner."""
        self._files.close(self._fd)


def _owner(fd: int) -> str:
    try:
        text = os.pread(fd, _MAX_OWNER_BYTES, 0).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return f" ({text})" if text.isprintable() and text else ""
