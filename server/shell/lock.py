"""A file that exactly one live process holds locked: the endpoint's, and the arena's.

Purpose: tell a live owner from a dead one by the kernel's lock, not by guessing at processes or
sockets (B38). The kernel lets go with the owner's last breath, which may come a moment after a
kill -9, so a lock is waited for while the owner it names is gone or going. Must not know: what is
guarded. Runs in: the main thread, at start and end.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import stat
import time

from protocol.errors import ConfigError, ErrorCode

DYING_LIMIT_S = 2.0
"""Longest wait for the lock of an owner that is not alive any more."""

_MAX_OWNER_BYTES = 512
_TRIES = 100
_PAUSE_S = 0.02
# Without O_NONBLOCK a pipe or a device in its place could keep the start waiting.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_PF_EXITING = 0x4


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
        """Takes the lock, or refuses: at once while its owner lives, else within DYING_LIMIT_S.

        Args:
            path: lock file, made if it is missing.
            owner: one line about this process.
            what: what the lock stands for, as the error names it.

        Raises:
            ConfigError: ENDPOINT_IN_USE naming the live owner, INVALID_CONFIG when the file
                cannot be made.
        """
        self.path = path
        self._owner = owner
        self._what = what
        self._fd = _acquire(path, what)
        _write(self._fd, owner)

    def is_held(self) -> bool:
        """Whether the path still leads to the file that is locked: somebody may have removed it."""
        return self._fd >= 0 and _is_same_file(self.path, self._fd)

    def regain(self) -> None:
        """Takes the lock again after its file was removed; nothing while it is held.

        Raises:
            ConfigError: ENDPOINT_IN_USE when another process took it meanwhile, INVALID_CONFIG
                when the file cannot be made.
        """
        if self.is_held():
            return
        fd = _acquire(self.path, self._what)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        _write(fd, self._owner)

    def release(self) -> None:
        """Removes the file while it is still locked, then lets go. Idempotent.

        One that another process put in its place stays.
        """
        if self._fd < 0:
            return
        if self.is_held():
            try:
                os.unlink(self.path)
            except OSError:
                pass
        os.close(self._fd)
        self._fd = -1


def _write(fd: int, owner: str) -> None:
    """Names the owner in the file, for people: a full file system is no reason not to start."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, owner.encode()[:_MAX_OWNER_BYTES], 0)
    except OSError:
        pass


def _read(fd: int) -> str:
    """The owner that the file names, fit for one line of an error."""
    text = os.pread(fd, _MAX_OWNER_BYTES, 0).decode("utf-8", "replace").partition("\n")[0]
    return "".join(char if char.isprintable() else "?" for char in text).strip()


def _acquire(path: str, what: str) -> int:
    give_up_s = time.monotonic() + DYING_LIMIT_S
    replaced = 0
    while True:
        try:
            fd = os.open(path, _FLAGS, 0o600)
        except OSError as error:
            raise ConfigError(
                ErrorCode.INVALID_CONFIG, f"{what}: cannot open {path}: {error.strerror}"
            ) from error
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            os.close(fd)
            raise ConfigError(
                ErrorCode.INVALID_CONFIG,
                f"{what}: {path} is no file of user {os.geteuid()}'s, so it cannot be the lock",
            )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _read(fd)
            os.close(fd)
            if time.monotonic() < give_up_s and is_going(owner):
                time.sleep(_PAUSE_S)
                continue
            raise ConfigError(
                ErrorCode.ENDPOINT_IN_USE, f"{what} is in use by {owner or 'another server'}"
            ) from error
        if _is_same_file(path, fd):
            return fd
        # The last owner unlinked this file between our open and our lock: take the new one.
        os.close(fd)
        replaced += 1
        if replaced == _TRIES:
            raise ConfigError(ErrorCode.ENDPOINT_IN_USE, f"{what}: {path} keeps being replaced")


def is_going(owner: str) -> bool:
    """Whether the owner of a lock is gone or about to end, for instance after a kill -9.

    Args:
        owner: text of the lock file.

    Returns:
        False also for a text that names no process: somebody took the lock and has not written
        yet, or it is no server of ours.
    """
    named = re.match(r"pid ([0-9]{1,10}),", owner)
    if named is None:
        return False
    try:
        with open(f"/proc/{named[1]}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        with open(f"/proc/{named[1]}/status", encoding="ascii", errors="replace") as file:
            pending = re.findall(r"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)$", file.read(), re.M)
    except (OSError, IndexError):
        return True
    is_killed = any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending)
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING) or is_killed


def _is_same_file(path: str, fd: int) -> bool:
    try:
        named = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    held = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
