"""A file that exactly one live process holds locked: the endpoint's, and the arena's.

Purpose: tell a live owner from a dead one by the kernel's lock, not by guessing at processes or
sockets (B38). The kernel lets go with the owner's last breath. Must not know: what is guarded.
Runs in: the main thread, at start and end.
"""

from __future__ import annotations

import fcntl
import os
import time

from protocol.errors import ConfigError, ErrorCode

_MAX_OWNER_BYTES = 512
_TRIES = 100


def owner_line() -> str:
    """One line naming this process for people: its id, a random name, its start.

    Returns:
        Without a line break.
    """
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return f"pid {os.getpid()}, server {os.urandom(16).hex()}, started {started}"


class FileLock:
    """An flock held until ``release``; the file's text names the owner for people.

    Attributes:
        path: the lock file.
    """

    def __init__(self, path: str, owner: str, what: str) -> None:
        """Takes the lock or refuses at once.

        Args:
            path: lock file, made if it is missing.
            owner: one line about this process.
            what: what the lock stands for, as the error names it.

        Raises:
            ConfigError: ENDPOINT_IN_USE naming the live owner, INVALID_CONFIG when the file
                cannot be made.
        """
        self.path = path
        self._fd = _acquire(path, what)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, owner.encode()[:_MAX_OWNER_BYTES], 0)

    def release(self) -> None:
        """Removes the file while it is still locked, then lets go. Idempotent."""
        if self._fd < 0:
            return
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        os.close(self._fd)
        self._fd = -1


def _acquire(path: str, what: str) -> int:
    for _ in range(_TRIES):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(
                ErrorCode.INVALID_CONFIG, f"{what}: cannot open {path}: {error.strerror}"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(fd, _MAX_OWNER_BYTES, 0).decode("utf-8", "replace").strip()
            os.close(fd)
            raise ConfigError(
                ErrorCode.ENDPOINT_IN_USE, f"{what} is in use by {owner or 'another server'}"
            ) from error
        if _is_same_file(path, fd):
            return fd
        # The last owner unlinked this file between our open and our lock: take the new one.
        os.close(fd)
    raise ConfigError(ErrorCode.ENDPOINT_IN_USE, f"{what}: {path} keeps being replaced")


def _is_same_file(path: str, fd: int) -> bool:
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    held = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
