"""The arena's directory: its lock, its identity, and what stays of it when a server ends.

Purpose: one server per directory; the next one finds the same identity and what this one held. The
directory outlives the server unless the settings say otherwise. Must not know: what extents hold,
which of them are taken over. Runs in: the main thread, at start and end.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat

from protocol.errors import ConfigError, ErrorCode
from protocol.ids import ID_BYTES, ArenaId
from server.shell import adoption, namespacefiles, owedfiles, parties, quotafile
from server.shell.extents import EXTENT_SUFFIX
from server.shell.folders import make_private_directory, why_not_made
from server.shell.foothold import Foothold
from server.shell.lock import FileLock, owner_line
from server.shell.memory import is_memory
from server.shell.namespacefiles import read_whole, write_whole

_log = logging.getLogger("kvkeep.server")

_LOCK = "lock"
_IDENTITY = "arena"
_BOOT = "boot"
_SHM = "/dev/shm"
_FOLDERS = (namespacefiles.FOLDER, parties.FOLDER, owedfiles.FOLDER)
_EXTENT_NAME = re.compile(r"[0-9]{8,10}" + re.escape(EXTENT_SUFFIX))
_IDENTITY_TEXT = re.compile(r"[0-9a-f]{32}\n?")


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
        id: of this arena, kept over restarts.
        outdated: the id that lay there and is not believed, as the machine was started since; None
            where there is none.
        foothold: makes the directory again should somebody remove it.
    """

    def __init__(self, directory: str) -> None:
        """Locks the directory, making it if it is missing, and reads its identity.

        Args:
            directory: absolute path; its parent exists.

        Raises:
            ConfigError: ENDPOINT_IN_USE when a live server holds it, INVALID_CONFIG when it is
                unsafe or cannot be used.
        """
        self.directory = directory
        self.outdated: ArenaId | None = None
        try:
            self._made = _made(directory)
            lock_path = f"{directory}/{_LOCK}"
            self._lock = FileLock(lock_path, owner_line(), f"the arena {directory}")
            try:
                for name in _FOLDERS:
                    _make_folder(f"{directory}/{name}")
                self.id = self._identity(parties.Surroundings.here().boot)
            except BaseException:
                self._lock.release()
                raise
            self.foothold = Foothold(directory, self._lock, f"{directory}/{_IDENTITY}", _FOLDERS)
        except OSError as error:
            raise ConfigError(
                ErrorCode.INVALID_CONFIG,
                f"arena-dir: {directory} cannot be used: {why_not_made(directory, error)}",
                key="arena-dir",
            ) from error

    def _identity(self, boot: str) -> ArenaId:
        """The identity that lies there, or a new one, by which nothing that lies there is known.

        On a disk, what was written last before the machine went down may be there in part: records,
        and not the bytes they speak of.

        Args:
            boot: of the kernel.
        """
        path = f"{self.directory}/{_IDENTITY}"
        text, written = _read(path), _read(f"{self.directory}/{_BOOT}").strip()
        found = None
        if _IDENTITY_TEXT.fullmatch(text):
            found = ArenaId(bytes.fromhex(text.strip()))
        if found is not None and (written == boot or self.is_in_memory):
            identity = found
        else:
            identity, self.outdated = ArenaId(os.urandom(ID_BYTES)), found
            write_whole(path, identity.hex().encode() + b"\n")
        if written != boot:  # after the identity, so that a kill in between keeps nothing
            write_whole(f"{self.directory}/{_BOOT}", boot.encode() + b"\n")
        return identity

    def free_bytes(self) -> int:
        """Room that the directory's file system has now."""
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize

    @property
    def is_in_memory(self) -> bool:
        """Whether the directory's files are memory of this machine."""
        return is_memory(self.directory)

    def close(self, keep: bool, holds: bool = True) -> None:
        """Lets go of the directory.

        A directory that another server made its own meanwhile stays as it is; and what lower tiers
        are still to forget stays in any case, for they outlive the arena.

        Args:
            keep: leave what a next server can take over: the extents, unless there are none, or no
                identity by which it would know them; and the quotas in any case.
            holds: whether a chunk is in the extents. Those that hold none go, too, unless a process
                has one mapped: its memory is taken then with and without a name, and by the name
                the next server knows that it is part of its arena.
        """
        self.foothold.leave()
        try:
            self._lock.regain()
        except ConfigError:
            self._lock.release()
            return
        names = os.listdir(self.directory)
        extents = [name for name in names if _EXTENT_NAME.fullmatch(name)]
        paths = [f"{self.directory}/{name}" for name in extents]
        is_wanted = keep and extents and _IDENTITY in names
        if is_wanted and (holds or not adoption.is_unused(paths)):
            self._lock.release()
            return
        for path in (*paths, f"{self.directory}/{_IDENTITY}", f"{self.directory}/{_BOOT}"):
            _unlink(path)
        if quotafile.NAME in names:
            self._leave_quotas(keep)
        for name in (namespacefiles.FOLDER, parties.FOLDER):
            _remove_folder(f"{self.directory}/{name}")
        _rmdir_if_empty(f"{self.directory}/{owedfiles.FOLDER}")
        self._lock.release()
        if self._made:
            _rmdir_if_empty(self.directory)  # or somebody put a file there: theirs to remove

    def _leave_quotas(self, keep: bool) -> None:
        path = f"{self.directory}/{quotafile.NAME}"
        if keep:
            _log.info("quotas_kept: the arena held nothing; its quotas stay in %s", path)
            return
        _unlink(path)
        _log.warning(
            "quotas_removed: the quotas that were set while servers ran went with the arena %s, as "
            "--arena-at-exit remove says; those of --quota stay",
            self.directory,
        )


def _made(directory: str) -> bool:
    """Makes the arena's folder or checks it; whether it is this user's alone."""
    try:
        return make_private_directory(directory)
    except ConfigError as error:
        detail = {**error.detail, "key": "arena-dir"}
        raise ConfigError(error.code, f"arena-dir: {error.message}", **detail) from error


def _read(path: str) -> str:
    """A small file's text; empty when there is none, or something that is none."""
    try:
        return read_whole(path, 64).decode("ascii", "replace")
    except OSError:
        return ""


def _make_folder(path: str) -> None:
    """Makes a folder of the arena's; what else has its name is removed."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(path, follow_symlinks=False).st_mode):
            os.unlink(path)
            os.mkdir(path, 0o700)


def _remove_folder(path: str) -> None:
    try:
        for name in os.listdir(path):
            _unlink(f"{path}/{name}")
        os.rmdir(path)
    except OSError:  # it is gone, or a folder in it is not ours
        pass


def _rmdir_if_empty(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        pass


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        pass
