"""The disk tier of one server: fixed slots in preallocated files, an index, a hard quota.

Purpose: values go straight between L1 and the disk, past the page cache, with their header in a
block of its own before them. A folder that vanished is noticed and made anew; whatever else fails
is a status and a counter. Must not know: what is in a header. Runs in: the porter's worker threads,
several calls at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from struct import Struct

from server.core.tiers.parts import Share, Status
from server.tiers.disk.catalog import Place
from server.tiers.disk.described import Described
from server.tiers.disk.files import (
    BLOCK_BYTES,
    Files,
    HeaderBlocks,
    blocks,
    read_all,
    shortage,
    status_of,
    write_all,
)
from server.tiers.disk.plan import divide
from server.tiers.disk.shares import whose
from server.tiers.disk.store import Store
from server.tiers.disk.troubles import Troubles
from server.tiers.interface import HEADER_BYTES, Health, Name, Part, TierError

LOOK_EVERY_S = 1.0
"""How often a put looks whether the folder is still there."""

_LEAVE_S = 1.0
_NAME = Struct(">16s16sI")


class SlabTier:
    """One folder of segments: ``Tier``, ``Touching``, ``Lister`` of ``server.tiers.interface``."""

    def __init__(self, folder: str, size_bytes: int, name: str, files: Files | None = None) -> None:
        """Opens the folder, or makes it.

        Args:
            folder: absolute path.
            size_bytes: most that it may take, everything included.
            name: of the tier, for log lines.
            files: the system calls; None for the real ones.

        Raises:
            TierError: it cannot be used, or another server uses it.
        """
        self._files = files or Files()
        self._folder = folder
        self._plan = divide(size_bytes)
        self._troubles = Troubles(name)
        self._headers = HeaderBlocks()
        self._described = Described(self._files, folder, self._plan.described_bytes)
        self._state = threading.Condition()
        self._inside = 0
        self._look_s = 0.0
        self._quotas: tuple[Share, ...] = ()
        self._store: Store | None = self._open()

    def _open(self) -> Store:
        try:
            store = Store(self._files, self._folder, self._plan, self._troubles)
        except OSError as error:
            raise TierError(f"{self._folder}: {error.strerror or error}") from None
        store.catalog.set_quotas(self._quotas)
        return store

    def batch_exists(self, names: Sequence[Name]) -> list[bool]:
        """See ``Tier``."""
        with self._entered() as store:
            if store is None:
                return [False] * len(names)
            return store.catalog.exist([_NAME.pack(*name) for name in names])

    def batch_get_into(self, parts: Sequence[Part]) -> list[Status]:
        """See ``Tier``."""
        with self._entered() as store:
            if store is None:
                return [Status.ERROR] * len(parts)
            return [self._get(store, part) for part in parts]

    def batch_put(self, parts: Sequence[Part]) -> list[Status]:
        """See ``Tier``."""
        with self._entered() as store:
            if store is None or not self._is_there(store):
                return [Status.ERROR] * len(parts)
            return [self._put(store, part) for part in parts]

    def touch(self, names: Sequence[Name]) -> list[Status]:
        """See ``Touching``."""
        with self._entered() as store:
            if store is None:
                return [Status.ERROR] * len(names)
            touched = (store.catalog.touch(_NAME.pack(*name), 0) for name in names)
            return [Status.OK if is_there else Status.ABSENT for is_there in touched]

    def delete(self, names: Sequence[Name]) -> None:
        """See ``Tier``."""
        with self._entered() as store:
            if store is None:
                raise TierError(_GONE)
            # Not any(): all of them are to be forgotten.
            if sum(store.catalog.forget(_NAME.pack(*name)) for name in names):
                store.journal.settle()

    def clear(self, fingerprint: bytes) -> None:
        """See ``Tier``. When it returns the index on the disk says so, too."""
        with self._entered() as store:
            if store is None:
                raise TierError(_GONE)
            self._described.forget(fingerprint)
            store.catalog.clear(fingerprint)
            store.journal.settle()

    def health(self) -> Health:
        """Looks whether the folder takes a write; opens it again if it was lost."""
        with self._entered() as store:
            note = "" if store is None else self._trouble(store)
            used = 0 if store is None else store.catalog.used_bytes
            is_short = store is not None and store.space.is_short
            shares, salts = ((), ()) if store is None else store.catalog.held()
        if store is None or note == _GONE:
            note = self._revive()
        self._look_s = 0.0
        counters = self._troubles.line()
        return Health(
            ok=not note,
            used_bytes=used,
            capacity_bytes=self._plan.size_bytes,
            note="; ".join(filter(None, (note, counters))),
            shares=shares,
            salts=salts,
            warning=shortage(self._files, self._folder, self._plan.size_bytes, is_short),
        )

    def register(self, address: int, size_bytes: int) -> None:
        """See ``Tier``: nothing to be known beforehand."""

    def unregister(self, address: int, size_bytes: int) -> None:
        """See ``Tier``."""

    def close(self) -> None:
        """See ``Tier``. What was put is in the index afterwards."""
        self._leave()

    # --- tenants --------------------------------------------------------------------------

    def set_quotas(self, quotas: Sequence[Share]) -> None:
        """See ``Sharing``."""
        self._quotas = tuple(quotas)
        with self._entered() as store:
            if store is not None:
                store.catalog.set_quotas(self._quotas)

    def trim(self) -> bool:
        """See ``Sharing``."""
        with self._entered() as store:
            return store is not None and store.space.trim()

    def of_salt(self, salt: bytes, most: int) -> list[Name]:
        """See ``Sharing``."""
        with self._entered() as store:
            if store is None:
                raise OSError(errno.ENOENT, _GONE)
            return [Name(*_NAME.unpack(one)) for one in store.catalog.of_salt(salt, most)]

    # --- what it has ----------------------------------------------------------------------

    def keep_namespace(self, fingerprint: bytes, text: bytes) -> None:
        """See ``Lister``."""
        with self._entered() as store:
            if store is not None and store.hold.is_held():
                self._described.keep(fingerprint, text)
            else:
                self._described.remember(fingerprint, text)

    def namespaces(self) -> list[bytes]:
        """See ``Lister``; those described first, and then any others that have values."""
        found = self._described.all()
        with self._entered() as store:
            is_there = store is not None and store.hold.is_held()
            others = store.catalog.namespaces() if store is not None and is_there else set()
        return found + sorted(others - set(found))

    def namespace(self, fingerprint: bytes) -> bytes:
        """See ``Lister``."""
        return self._described.text(fingerprint)

    def hottest(self, fingerprint: bytes, shard: int, most: int) -> list[bytes]:
        """See ``Lister``."""
        suffix = _NAME.pack(bytes(16), bytes(16), shard)[32:]
        with self._entered() as store:
            names = store.catalog.hottest(fingerprint, suffix, most) if store is not None else []
        return [name[16:32] for name in names]

    def peek(self, name: Name) -> bytes:
        """See ``Lister``."""
        packed = _NAME.pack(*name)
        with self._entered() as store:
            place = store.catalog.pin(packed, is_use=False) if store is not None else None
            if store is None or place is None:
                return b""
            segment, slot = place
            block = self._headers.block
            try:
                read = read_all(self._files, segment.fd, [block], segment.offset(slot))
            finally:
                store.catalog.unpin(place)
            if read < BLOCK_BYTES or not self._headers.names(packed):
                return b""
            return bytes(block[:HEADER_BYTES])

    @property
    def troubles(self) -> Troubles:
        """What went wrong so far."""
        return self._troubles

    @contextlib.contextmanager
    def _entered(self) -> Iterator[Store | None]:
        """The open folder, which stays open meanwhile."""
        with self._state:
            self._inside += 1
            store = self._store
        try:
            yield store
        finally:
            with self._state:
                self._inside -= 1
                self._state.notify_all()

    def _leave(self) -> bool:
        """Closes the folder once nobody is inside; False if somebody stays for too long."""
        with self._state:
            store, self._store = self._store, None
            if not self._state.wait_for(lambda: self._inside == 0, _LEAVE_S):
                self._store = store
                return False
        if store is not None:
            store.close()
        return True

    def _revive(self) -> str:
        if not self._leave():
            return "the folder is gone, and still in use"
        try:
            store = self._open()
        except TierError as error:
            return str(error)
        with self._state:
            self._store, lost = store, self._store
        if lost is not None:
            lost.close()
        if store.is_new:
            self._troubles.tell("made anew", f"{self._folder} was gone; what it had is forgotten")
        try:
            self._described.restore()
        except OSError as error:
            self._troubles.tell("write errors", error.strerror)
        return ""

    def _is_there(self, store: Store) -> bool:
        now_s = time.monotonic()
        if now_s >= self._look_s:
            if not store.hold.is_held():
                self._troubles.tell("folder gone", self._folder)
                return False
            self._look_s = now_s + LOOK_EVERY_S
        return True

    def _trouble(self, store: Store) -> str:
        if not store.hold.is_held():
            return _GONE
        try:
            store.hold.prove()
        except OSError as error:
            # A full disk still serves what it has.
            if status_of(error) is not Status.NO_ROOM:
                return f"{self._folder}: {error.strerror}"
        return ""

    def _get(self, store: Store, part: Part) -> Status:
        name = _NAME.pack(*part.name)
        place = store.catalog.pin(name)
        if place is None:
            return Status.ABSENT
        status = Status.CORRUPT
        try:
            status = self._read(name, place, part)
        except OSError as error:
            status = Status.ERROR
            self._troubles.tell("read errors", error.strerror)
        finally:
            store.catalog.unpin(place)
        if status is not Status.OK:
            store.catalog.forget(name, place)
        return status

    def _read(self, name: bytes, place: Place, part: Part) -> Status:
        segment, slot = place
        length = blocks(part.payload_bytes)
        if BLOCK_BYTES + length > segment.slot_bytes or length > len(part.room):
            self._troubles.tell("other lengths", f"{part.payload_bytes} bytes asked for")
            return Status.CORRUPT
        block = self._headers.block
        buffers = [block, part.room[:length]]
        read = read_all(self._files, segment.fd, buffers, segment.offset(slot))
        if not segment.is_direct:
            self._files.forget_cached(segment.fd)
        if read < BLOCK_BYTES + length:
            self._troubles.tell("truncated", os.path.basename(segment.path))
            return Status.CORRUPT
        if not self._headers.names(name):
            # Killed after the slot was written anew and before the index said so.
            self._troubles.tell("stale entries", os.path.basename(segment.path))
            return Status.ABSENT
        part.header[:] = block[:HEADER_BYTES]
        return Status.OK

    def _put(self, store: Store, part: Part) -> Status:
        name = _NAME.pack(*part.name)
        if store.catalog.touch(name, part.heat):
            return Status.OK
        taker = whose(name, part.salt)
        place = store.space.take(BLOCK_BYTES + blocks(len(part.room)), taker)
        if isinstance(place, Status):
            return place
        is_written = False
        try:
            self._write(name, place, part)
            is_written = True
        except OSError as error:
            self._troubles.tell("write errors", error.strerror)
            status = status_of(error)
            return status if status is Status.NO_ROOM else Status.ERROR
        finally:
            if not is_written:
                store.catalog.give_back(place)
        store.catalog.publish(name, place, part.heat)
        return Status.OK

    def _write(self, name: bytes, place: Place, part: Part) -> None:
        segment, slot = place
        length = blocks(part.payload_bytes)
        if length > len(part.room):
            raise OSError(errno.EINVAL, "a room that is no whole blocks")
        buffers = [self._headers.filled(part.header, name), part.room[:length]]
        write_all(self._files, segment.fd, buffers, segment.offset(slot))
        if not segment.is_direct:
            self._files.forget_cached(segment.fd)


_GONE = "the folder is gone"
