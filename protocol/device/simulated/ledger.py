"""Files of the shared folder: device memory and contexts, each held by locks of its processes.

A file lives while somebody holds a lock on it, so the death of a process gives back what was its
own, and memory that another process opened lives on until that one closes it, as with CUDA.

Must not know: addresses, streams.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

_MAKING = "making"
_MEMORY = "memory"
_FREED = "freed"
_CONTEXT = "context"
_HELD = (_MEMORY, _FREED, _CONTEXT)
_MAKING_S = 30.0
"""A file whose maker died before it had locked it is swept after so long."""

TOKEN_BYTES = 16


@dataclass(frozen=True)
class Census:
    """What a device's memory is taken by.

    Attributes:
        memory_bytes: allocated and not freed by a living process.
        freed_bytes: freed by its owner, or left by one that died, and still open in another.
        num_contexts: processes that use the device.
    """

    memory_bytes: int
    freed_bytes: int
    num_contexts: int


class Holding:
    """A file of the folder with this process's lock on it."""

    def __init__(self, path: Path, fd: int, token: bytes) -> None:
        """Of a file that is locked."""
        self._path = path
        self.fd = fd
        self.token = token
        self.num_bytes = os.fstat(fd).st_size
        self._is_released = False

    def release(self) -> None:
        """Gives the lock back, and removes the file if it was the last. Idempotent."""
        if self._is_released:
            return
        self._is_released = True
        fcntl.flock(self.fd, fcntl.LOCK_UN)  # a mapping keeps a copy of the descriptor
        os.close(self.fd)
        _sweep(self._path)
        _sweep(self._path.with_name(self._path.name.replace(_MEMORY, _FREED, 1)))

    def retire(self) -> None:
        """Takes the name away, so that nobody opens it any more, and the lock back."""
        gone = self._path.with_name(self._path.name.replace(_MEMORY, _FREED, 1))
        if not self._is_released:
            self._path.replace(gone)
            self._path = gone
        self.release()


def allocate(folder: Path, device: int, num_bytes: int) -> Holding:
    """Makes memory of a device, zeros."""
    return _make(folder, _MEMORY, device, num_bytes)


def enter(folder: Path, device: int) -> Holding:
    """Notes that this process uses a device."""
    return _make(folder, _CONTEXT, device, 0)


def join(folder: Path, device: int, token: bytes) -> Holding | None:
    """Takes a lock on memory that another process allocated; None if it is gone."""
    path = folder / _name(_MEMORY, device, token)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    fcntl.flock(fd, fcntl.LOCK_SH)
    if os.fstat(fd).st_nlink == 0:
        os.close(fd)
        return None
    return Holding(path, fd, token)


def census(folder: Path, device: int) -> Census:
    """Counts what is held, and removes what nobody holds any more."""
    taken = dict.fromkeys(_HELD, 0)
    for path in folder.iterdir():
        kind, _, rest = path.name.partition("-")
        if kind == _MAKING:
            _sweep(path, _MAKING_S)
        elif kind in _HELD and rest.startswith(f"{device:02d}-"):
            num_bytes = _sweep(path)
            if num_bytes is not None:
                taken[kind] += 1 if kind == _CONTEXT else num_bytes
    return Census(taken[_MEMORY], taken[_FREED], taken[_CONTEXT])


def _name(kind: str, device: int, token: bytes) -> str:
    return f"{kind}-{device:02d}-{token.hex()}"


def _make(folder: Path, kind: str, device: int, num_bytes: int) -> Holding:
    token = os.urandom(TOKEN_BYTES)
    made = folder / _name(_MAKING, device, token)
    path = folder / _name(kind, device, token)
    fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    os.ftruncate(fd, num_bytes)
    made.replace(path)
    return Holding(path, fd, token)


def _sweep(path: Path, min_age_s: float = 0.0) -> int | None:
    """Removes a file that nobody holds.

    Returns:
        its size if it is held, else None.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        state = os.fstat(fd)
        if time.time() - state.st_mtime < min_age_s:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return state.st_size
        if state.st_nlink:
            path.unlink(missing_ok=True)
        return None
    finally:
        os.close(fd)
