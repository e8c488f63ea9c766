"""The arena's directory: its lock, its identity, and what a dead predecessor left in it.

Purpose: one server per directory. This version starts empty: extents of a dead predecessor are
unlinked (engines that map them keep the bytes until they unmap) and the arena gets a new id, since
extent numbers begin anew; adoption of a predecessor's extents comes with a later version. Must
not know: what extents hold. Runs in: the main thread, at start and end.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat

from protocol.errors import ConfigError, ErrorCode
from protocol.ids import ArenaId
from server.shell.extents import EXTENT_SUFFIX
from server.shell.lock import FileLock, owner_line

_LOCK = "lock"
_IDENTITY = "arena"
_SHM = "/dev/shm"
_EXTENT_NAME = re.compile(r"[0-9]{8,10}" + re.escape(EXTENT_SUFFIX))


def default_directory(url: str, uid: int) -> str:
    """Where the arena lies when nobody says.

    Args:
        url: the endpoint, so that two servers of one user have two arenas.
        uid: effective user.

    Returns:
        Absolute path in shared memory.
    """
    return f"{_SHM}/kvkeep-{uid}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


class Arena:
    """A directory that this process alone writes to.

    Attributes:
        directory: absolute path.
        id: of this arena.
        num_discarded: extents of a predecessor that were unlinked at the start.
    """

    def __init__(self, directory: str) -> None:
        """Locks and empties the directory, making it if it is missing.

        Args:
            directory: absolute path; its parent exists.

        Raises:
            ConfigError: ENDPOINT_IN_USE when a live server holds it, INVALID_CONFIG when it is
                unsafe or cannot be used.
        """
        self.directory = directory
        self.id = ArenaId(os.urandom(16))
        self.num_discarded = 0
        try:
            self._made = make_private_directory(directory)
            lock_path = f"{directory}/{_LOCK}"
            self._lock = FileLock(lock_path, owner_line(), f"the arena {directory}")
            self._discard_extents()
            self._write_identity()
        except OSError as error:
            raise ConfigError(
                ErrorCode.INVALID_CONFIG,
                f"arena-dir: {directory} cannot be used: {error.strerror}",
                key="arena-dir",
            ) from error

    def _discard_extents(self) -> None:
        for name in os.listdir(self.directory):
            if _EXTENT_NAME.fullmatch(name):  # whatever else lies there is not ours
                os.unlink(f"{self.directory}/{name}")
                self.num_discarded += 1

    def _write_identity(self) -> None:
        path = f"{self.directory}/{_IDENTITY}"
        fresh = f"{path}.new"
        with open(fresh, "w", encoding="ascii") as file:
            file.write(self.id.hex() + "\n")
        os.replace(fresh, path)

    def free_bytes(self) -> int:
        """Room that the directory's file system has now."""
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """Unlinks all extents, the identity, the lock, and the directory if it is empty then."""
        self._discard_extents()
        try:
            os.unlink(f"{self.directory}/{_IDENTITY}")
        except FileNotFoundError:
            pass
        self._lock.release()
        if self._made:
            try:
                os.rmdir(self.directory)
            except OSError:  # somebody put a file there: theirs to remove
                pass


def make_private_directory(path: str) -> bool:
    """Makes a directory for this user alone, or checks that it is one.

    Args:
        path: absolute; the parent exists.

    Returns:
        Whether it is as this function makes it: ours, and nobody else may enter.

    Raises:
        ConfigError: INVALID_CONFIG when it belongs to somebody else or others may write in it.
        OSError: it cannot be made.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.stat(path, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(ErrorCode.INVALID_CONFIG, f"{path} is no directory", path=path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"{path} must belong to user {os.geteuid()} and be writable by nobody else; it belongs "
            f"to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}",
            path=path,
        )
    return found.st_mode & 0o077 == 0
