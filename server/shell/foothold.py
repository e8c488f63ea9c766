"""The arena's folder, made again if somebody removes it under a running server (B18).

Purpose: systemd removes what a user has in shared memory when the last login of that user ends
(RemoveIPC), and people remove what they take for rubbish. What was in the folder is held by
descriptors and stays in use; new extents need a folder again. It gets no identity, so the next
server takes nothing of it over: the files that named who reads the extents are gone. Must not know:
extents, parties. Runs in: whichever thread is about to make a file in the folder.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence

from protocol.errors import ConfigError
from server.shell.folders import make_private_directory
from server.shell.lock import FileLock

_log = logging.getLogger("kvkeep.server")


class Foothold:
    """The folder of one arena.

    Args:
        directory: absolute path.
        lock: of the arena, held.
        identity: path of the file that a next server recognises the arena by.
        folders: names of the folders in it.

    Attributes:
        removed: told, in whichever thread, that it was removed and is made again; logs it unless
            somebody counts it as well.
    """

    def __init__(
        self, directory: str, lock: FileLock, identity: str, folders: Sequence[str]
    ) -> None:
        self._directory = directory
        self._lock = lock
        self._identity = identity
        self._folders = [f"{directory}/{name}" for name in folders]
        self.removed: Callable[[str], None] = lambda text: _log.warning("arena_removed: %s", text)
        self._guard = threading.Lock()
        self._is_left = False

    def leave(self) -> None:
        """The server lets go of the folder: a thread that ends too late makes nothing in it."""
        with self._guard:
            self._is_left = True

    def stand(self) -> None:
        """Makes what is missing of the folder; nothing while all of it is there.

        Raises:
            OSError: it cannot be made, another server has made it its own meanwhile, or this one
                has let go of it.
        """
        with self._guard:
            if self._is_left:
                raise OSError(errno.ESHUTDOWN, "the server has let go of its arena")
            if self._lock.is_held() and all(map(os.path.isdir, self._folders)):
                return
            try:
                make_private_directory(self._directory)
                self._lock.regain()
            except ConfigError as error:
                raise OSError(errno.EBUSY, error.message) from error
            try:
                os.unlink(self._identity)
            except FileNotFoundError:
                pass
            for folder in self._folders:
                os.makedirs(folder, mode=0o700, exist_ok=True)
            self.removed(
                f"somebody removed the arena's folder {self._directory}, or a part of it; it is "
                "made again. What is cached stays usable, and the next server begins empty"
            )
