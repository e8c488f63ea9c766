"""The disk tier of several servers: one file for each value in a folder that they share.

Purpose: nobody holds a lock; a value comes by rename, whole or not at all, and any server may
delete it at any time. Least recently used goes first, by the file's time, which each use sets. Must
not know: what is in a header. Runs in: the porter's worker threads, several calls at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import count

from server.core.tiers.parts import Share, Status
from server.tiers.disk.described import Described
from server.tiers.disk.files import (
    BLOCK_BYTES,
    Files,
    HeaderBlocks,
    blocks,
    open_direct,
    read_all,
    shortage,
    status_of,
    write_all,
)
from server.tiers.disk.holdings import Room
from server.tiers.disk.keeper import RESCAN_S, Keeper
from server.tiers.disk.listed import Listed
from server.tiers.disk.marks import Marks, tag_of
from server.tiers.disk.shares import Whose
from server.tiers.disk.troubles import Troubles
from server.tiers.disk.walker import CLEARED, UNFINISHED
from server.tiers.interface import HEADER_BYTES, Health, Name, Part, TierError

TOUCH_S = 60.0
"""A file's time is set anew when it is older: a shared folder is not asked at each use."""

DESCRIBED_BYTES = 1 << 17
"""For what namespaces are; of what the keeper leaves for folders."""

_FIRST_WALK_S = 2.0
"""How long the start waits for the count; until there is one nothing is written."""

_TRIES = 4
_NS = 1_000_000_000
_STEP_NS = 1_000


class SharedTier:
    """One shared folder: ``Tier``, ``Touching``, ``Lister``, ``Sharing`` of its interface."""

    def __init__(
        self,
        folder: str,
        size_bytes: int,
        name: str,
        files: Files | None = None,
        rescan_s: float = RESCAN_S,
        touch_s: float = TOUCH_S,
    ) -> None:
        """Opens the folder, or makes it.

        Args:
            folder: absolute path.
            size_bytes: most that it may take, what other servers write included.
            name: of the tier, for log lines.
            files: the system calls; None for the real ones.
            rescan_s: seconds from one walk through the folder to the next.
            touch_s: see ``TOUCH_S``.

        Raises:
            TierError: it cannot be used.
        """
        self._files = files or Files()
        self._folder = folder
        self._size_bytes = size_bytes
        self._touch_ns = int(touch_s * _NS)
        self._troubles = Troubles(name)
        self._headers = HeaderBlocks()
        self._described = Described(self._files, folder, DESCRIBED_BYTES)
        self._token = os.urandom(6).hex()
        self._numbers = count()
        try:
            self._files.make_folder(folder)
            self._probe()
        except OSError as error:
            raise TierError(f"{folder}: {error.strerror}") from None
        #: Whether the file system was full when a value was last written.
        self._is_short = False
        marks, own = Marks(self._files), f"{UNFINISHED}{self._token}-"
        self._listed = Listed(self._files, folder, marks)
        self._keeper = Keeper(self._files, folder, size_bytes, self._troubles, rescan_s, marks, own)
        self._keeper.wait_known(_FIRST_WALK_S)

    def batch_exists(self, names: Sequence[Name]) -> list[bool]:
        """See ``Tier``."""
        return [self._is_there(name) for name in names]

    def batch_get_into(self, parts: Sequence[Part]) -> list[Status]:
        """See ``Tier``."""
        now_ns = time.time_ns()
        return [self._get(part, now_ns - at * _STEP_NS) for at, part in enumerate(parts)]

    def batch_put(self, parts: Sequence[Part]) -> list[Status]:
        """See ``Tier``."""
        now_ns = time.time_ns()
        return [self._put(part, now_ns - at * _STEP_NS) for at, part in enumerate(parts)]

    def touch(self, names: Sequence[Name]) -> list[Status]:
        """See ``Touching``."""
        now_ns = time.time_ns()
        return [self._touch(name, now_ns - at * _STEP_NS) for at, name in enumerate(names)]

    def delete(self, names: Sequence[Name]) -> None:
        """See ``Tier``."""
        paths = [self._path(name) for name in names]
        left = [path for path in paths if not self._remove(path)]
        for folder in sorted({os.path.dirname(path) for path in paths}):
            self._sync(folder)
        if left:
            raise TierError(f"{len(left)} values cannot be removed")

    def clear(self, fingerprint: bytes) -> None:
        """See ``Tier``: gone by one rename; the files are removed behind it.

        When it returns the disk knows of it, also of a rename of an earlier try.
        """
        self._described.forget(fingerprint)
        target = f"{CLEARED}{self._token}{next(self._numbers)}"
        try:
            self._keeper.clear(fingerprint, target)
        except OSError as error:
            self._troubles.tell("write errors", error.strerror)
            raise  # else what was to be forgotten would be read again
        self._sync(self._folder)

    def health(self) -> Health:
        """Writes and removes a small file; makes the folder again if it vanished."""
        note = ""
        try:
            self._make_again()
            self._probe()
        except OSError as error:
            note = f"{self._folder}: {error.strerror}"
        counters = self._troubles.line()
        shares, salts = self._keeper.held()
        return Health(
            ok=not note,
            used_bytes=self._keeper.used_bytes,
            capacity_bytes=self._size_bytes,
            note="; ".join(filter(None, (note, counters))),
            shares=shares,
            salts=salts,
            warning=shortage(self._files, self._folder, self._size_bytes, self._is_short),
        )

    def register(self, address: int, size_bytes: int) -> None:
        """See ``Tier``: nothing to be known beforehand."""

    def unregister(self, address: int, size_bytes: int) -> None:
        """See ``Tier``."""

    def close(self) -> None:
        """See ``Tier``."""
        self._keeper.stop()

    # --- tenants --------------------------------------------------------------------------

    def set_quotas(self, quotas: Sequence[Share]) -> None:
        """See ``Sharing``."""
        self._keeper.set_quotas(quotas)

    def trim(self) -> bool:
        """See ``Sharing``."""
        return self._keeper.trim()

    def of_salt(self, salt: bytes, most: int) -> list[Name]:
        """See ``Sharing``: what any server stored."""
        return self._listed.of_salt(salt, most)

    # --- what it has ----------------------------------------------------------------------

    def keep_namespace(self, fingerprint: bytes, text: bytes) -> None:
        """See ``Lister``."""
        self._described.keep(fingerprint, text)

    def namespaces(self) -> list[bytes]:
        """See ``Lister``; those described first, and then any others that have a folder."""
        found = self._described.all()
        return found + sorted(self._listed.namespaces() - set(found))

    def namespace(self, fingerprint: bytes) -> bytes:
        """See ``Lister``."""
        return self._described.text(fingerprint)

    def hottest(self, fingerprint: bytes, shard: int, most: int) -> list[bytes]:
        """See ``Lister``: by the files' times, for nobody counts their uses."""
        return self._listed.latest(fingerprint, shard, most)

    def peek(self, name: Name) -> bytes:
        """See ``Lister``."""
        try:
            fd, _ = open_direct(self._files, self._path(name), os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            read = read_all(self._files, fd, [self._headers.block], 0)
        finally:
            self._files.close(fd)
        return bytes(self._headers.block[:HEADER_BYTES]) if read == BLOCK_BYTES else b""

    @property
    def troubles(self) -> Troubles:
        """What went wrong so far."""
        return self._troubles

    def _path(self, name: Name) -> str:
        key = name.key.hex()
        return os.path.join(self._folder, name.fingerprint.hex(), key[:2], f"{key}-{name.shard}")

    def _unfinished(self, folder: str) -> str:
        return os.path.join(folder, f"{UNFINISHED}{self._token}-{next(self._numbers)}")

    def _probe(self) -> None:
        path = self._unfinished(self._folder)
        try:
            self._files.close(self._files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            self._files.remove(path)
        except OSError as error:
            # A full disk still serves what it has.
            if status_of(error) is not Status.NO_ROOM:
                raise

    def _is_there(self, name: Name) -> bool:
        try:
            self._files.stat(self._path(name))
        except OSError:
            return False
        return True

    def _get(self, part: Part, now_ns: int) -> Status:
        path = self._path(part.name)
        try:
            fd, is_direct = open_direct(self._files, path, os.O_RDONLY)
        except OSError as error:
            return self._read_failed(error)
        try:
            status = self._read(fd, part, is_direct)
            if status is Status.OK:
                self._use(fd, path, now_ns)
        except OSError as error:
            status = self._read_failed(error)
        finally:
            self._files.close(fd)
        if status is Status.CORRUPT:
            self._remove(path)
        return status

    def _read(self, fd: int, part: Part, is_direct: bool) -> Status:
        length = blocks(part.payload_bytes)
        if length > len(part.room):
            return Status.ERROR
        block = self._headers.block
        read = read_all(self._files, fd, [block, part.room[:length]], 0)
        if not is_direct:
            self._files.forget_cached(fd)
        if read < BLOCK_BYTES + length:
            self._troubles.tell("truncated", f"{read} of {BLOCK_BYTES + length} bytes")
            return Status.CORRUPT
        part.header[:] = block[:HEADER_BYTES]
        return Status.OK

    def _read_failed(self, error: OSError) -> Status:
        status = status_of(error)
        if status is not Status.ABSENT:
            self._troubles.tell("read errors", error.strerror)
            return Status.ERROR
        return status

    def _touch(self, name: Name, now_ns: int) -> Status:
        path = self._path(name)
        try:
            fd = self._files.open(path, os.O_RDONLY)
        except OSError as error:
            return self._read_failed(error)
        try:
            self._use(fd, path, now_ns)
        finally:
            self._files.close(fd)
        return Status.OK

    def _use(self, fd: int, path: str, now_ns: int) -> None:
        found = os.fstat(fd)
        if now_ns - found.st_mtime_ns < self._touch_ns:
            return
        try:
            self._files.touch(fd, now_ns)
        except OSError:
            # Somebody else's file, perhaps: it may be read and goes a little sooner.
            return
        self._keeper.used(path, os.fstat(fd).st_mtime_ns, found)

    def _put(self, part: Part, now_ns: int) -> Status:
        path = self._path(part.name)
        if self._is_there(part.name):
            return Status.OK
        length = blocks(part.payload_bytes)
        if length > len(part.room):
            return Status.ERROR
        room = self._keeper.reserve(BLOCK_BYTES + length, Whose(part.name.fingerprint, part.salt))
        if isinstance(room, Status):
            return room
        try:
            self._write_anyway(room, path, part, now_ns)
        except OSError as error:
            self._keeper.release(room)
            status = status_of(error)
            self._is_short = status is Status.NO_ROOM
            kind = "disk full" if status is Status.NO_ROOM else "write errors"
            self._troubles.tell(kind, f"{self._folder}: {error.strerror}")
            return status if status is Status.NO_ROOM else Status.ERROR
        self._is_short = False
        return Status.OK

    def _write_anyway(self, room: Room, path: str, part: Part, now_ns: int) -> None:
        for _ in range(_TRIES):
            try:
                return self._write(room, path, part, now_ns)
            except FileNotFoundError:
                # Somebody cleared the namespace under our hands.
                pass
        return self._write(room, path, part, now_ns)

    def _write(self, room: Room, path: str, part: Part, now_ns: int) -> None:
        unfinished = self._unfinished(os.path.dirname(path))
        fd, is_direct = self._create(unfinished)
        try:
            try:
                header = self._headers.filled(part.header, part.salt)
                buffers = [header, part.room[: room.num_bytes - BLOCK_BYTES]]
                write_all(self._files, fd, buffers, 0)
                if part.salt:
                    self._files.set_length(fd, room.num_bytes + tag_of(part.salt))
                self._files.sync(fd)
                self._files.touch(fd, now_ns)
                used_ns = os.fstat(fd).st_mtime_ns
                if not is_direct:
                    self._files.forget_cached(fd)
            finally:
                self._files.close(fd)
            self._keeper.place(room, unfinished, path, part.salt, used_ns)
        except OSError:
            try:
                self._files.remove(unfinished)
            except OSError:
                pass
            raise

    def _create(self, path: str) -> tuple[int, bool]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return open_direct(self._files, path, flags)
        except FileNotFoundError:
            self._make_again()
            fan = os.path.dirname(path)
            self._files.make_folder(os.path.dirname(fan))
            self._files.make_folder(fan)
            self._keeper.charge(2 * BLOCK_BYTES)
        return open_direct(self._files, path, flags)

    def _make_again(self) -> None:
        """Makes the tier's folder if it is gone, with what this server kept of namespaces."""
        if self._files.make_folder(self._folder):
            self._keeper.look_again()
            self._troubles.tell("made anew", f"{self._folder} was gone; what it had is forgotten")
            self._described.restore()

    def _sync(self, folder: str) -> None:
        """What was forgotten in a folder does not come back after a crash of the machine."""
        try:
            self._files.sync_folder(folder)
        except FileNotFoundError:
            pass  # with all that was in it
        except OSError as error:
            self._troubles.tell("write errors", error.strerror)
            raise

    def _remove(self, path: str) -> bool:
        """Whether it is gone."""
        try:
            self._keeper.remove(path)
        except OSError as error:
            self._troubles.tell("files left", error.strerror)
            return False
        return True
