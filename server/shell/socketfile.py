"""The file of a listening socket: a dead one goes, a living one stays, ours if it is ours still.

Purpose: a path is free, or stale, or somebody else's, and only the kernel knows which (B38): a
server that was killed leaves its file behind, and the same path may be another program's socket.
Must not know: who listens for what. Runs in: the main thread, at start and end.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time

from protocol.errors import ConfigError, ErrorCode

DYING_S = 2.0
"""How long a killed predecessor, whose lock is free already, may take to close its sockets."""

_STEP_S = 0.02


class SocketFile:
    """The name of one socket in the file system.

    Args:
        path: where it is, or will be, bound; the caller holds the endpoint's lock.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None

    def make_way(self, dying_s: float = DYING_S) -> None:
        """Removes what a dead predecessor left.

        Args:
            dying_s: longest wait for a socket there to close.

        Raises:
            ConfigError: INVALID_CONFIG when something else lies there, ENDPOINT_IN_USE when a
                program listens there; either is left alone.
            OSError: it cannot be removed.
        """
        until_s = time.monotonic() + dying_s
        while (found := _find(self.path)) is not None:
            if not stat.S_ISSOCK(found.st_mode):
                raise ConfigError(
                    ErrorCode.INVALID_CONFIG,
                    f"{self.path} is there already and is no socket",
                    path=self.path,
                )
            if _is_dead(self.path):
                _unlink(self.path)
                return
            if time.monotonic() >= until_s:
                raise ConfigError(
                    ErrorCode.ENDPOINT_IN_USE,
                    f"{self.path} is the socket of another program, which still has it open",
                    path=self.path,
                )
            time.sleep(_STEP_S)

    def bound(self) -> None:
        """Remembers the file that was just bound, to know it again.

        Raises:
            OSError: it is gone.
        """
        found = os.stat(self.path, follow_symlinks=False)
        self._identity = (found.st_dev, found.st_ino)

    def is_there(self) -> bool:
        """Whether the path still leads to the socket that was bound."""
        found = _find(self.path)
        return found is not None and (found.st_dev, found.st_ino) == self._identity

    def remove(self) -> None:
        """Removes the file unless it was replaced by another's meanwhile. Idempotent."""
        if self.is_there():
            _unlink(self.path)


def _find(path: str) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_dead(path: str) -> bool:
    """Whether no process has the socket open that was bound here.

    A datagram socket asks: to a listener of connections the kernel refuses it by its type, so that
    nobody is disturbed, and only where there is none at all "connection refused" is the answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            return error.errno in (errno.ECONNREFUSED, errno.ENOENT)
    return False


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
