"""Brings what the catalog noted into the index file, behind the values' own bytes.

Purpose: an entry is written once the bytes it leads to are on the disk, and nobody waits for it: a
thread takes what was noted in the last second, has the segments synced, then writes one
transaction. Until then the tail has it. An index that cannot be written is made anew from the
catalog, now and then, for as long as it takes. Must not know: tiers, statuses. Runs in: a thread of
its own in the porter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import lmdb

from server.tiers.disk.catalog import Catalog
from server.tiers.disk.entries import Entry
from server.tiers.disk.files import Files
from server.tiers.disk.index import Index, IndexUnusableError
from server.tiers.disk.tail import Tail
from server.tiers.disk.troubles import Troubles

EVERY_S = 1.0
USES_EVERY_S = 30.0
AGAIN_S = 10.0
MAX_CHANGES = 262_144
"""When as many wait, the file is left behind and made anew later."""

_STOP_S = 2.0
_AT_ONCE = 65_536


class Journal:
    """What waits to be written, and the thread that writes it."""

    def __init__(
        self,
        files: Files,
        make_index: Callable[[], Index],
        tail: Tail,
        troubles: Troubles,
    ) -> None:
        """Nothing waits, and nothing is noted before ``start``.

        Args:
            files: the system calls.
            make_index: removes what is there and makes an empty index.
            tail: empty, or what it has is in the index; closed by ``stop``.
            troubles: what could not be written is told there.
        """
        self._files = files
        self._make_index = make_index
        self._tail = tail
        self._index: Index | None = None
        self._troubles = troubles
        self._changes: dict[bytes, Entry | None] = {}
        self._is_behind = False
        self._catalog: Catalog | None = None
        self._is_ending = False
        self._hurry = threading.Event()
        self._writing = threading.Lock()
        self._retry_s = 0.0
        self._uses_s = time.monotonic() + USES_EVERY_S
        self._thread = threading.Thread(target=self._run, name="disk-journal", daemon=True)

    def note(self, name: bytes, entry: Entry | None) -> None:
        """Remembers a change; under the catalog's lock."""
        if self._index is None:
            return
        self._changes[name] = entry
        if not self._tail.note(name, entry):
            self._hurry.set()
        self._is_behind |= len(self._changes) > MAX_CHANGES

    def start(self, catalog: Catalog, index: Index) -> None:
        """Begins to write.

        Args:
            catalog: whose ``note`` is this one's.
            index: open and read already; closed by ``stop``.
        """
        self._catalog, self._index = catalog, index
        self._tail.turn()
        self._tail.settle()
        self._thread.start()

    def stop(self) -> None:
        """Writes what waits, last uses too, and closes the index. Idempotent."""
        self._is_ending = True
        self._hurry.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        if self._thread.is_alive():
            return
        if self._catalog is not None:
            self._catalog.note_uses()
            self.flush()
        if self._index is not None:
            self._index.close()
            self._index = None
        self._tail.close()

    def flush(self) -> None:
        """Writes what waits now; a failure is told, and the index is made anew later."""
        catalog = self._catalog
        assert catalog is not None
        with self._writing:
            with catalog.lock:
                changes, self._changes = self._changes, {}
                if changes:
                    self._tail.turn()
                dirty = [segment for segment in catalog.segments.values() if segment.is_dirty]
                for segment in dirty:
                    segment.is_dirty = False
                catalog.hold(dirty)
            if not changes:
                catalog.let_go(dirty)
                return
            try:
                for segment in dirty:
                    self._files.sync(segment.fd)
                if self._index is not None:
                    self._write(self._index, changes)
            except OSError as error:
                # What is not known to be on the disk must not be entered.
                self._lose(error)
            finally:
                catalog.let_go(dirty)

    def settle(self) -> None:
        """Writes what waits, so that what went stays away: after a crash of the machine, too.

        Raises:
            IndexUnusableError: the file may still name what went.
            OSError: likewise.
        """
        self.flush()
        if self._index is None:
            # What is on the disk is from before; nothing was noted since.
            self._renew()
        with self._writing:
            if self._index is None:
                raise IndexUnusableError("the index cannot be written")
            self._index.sync()
            self._tail.sync()

    def _write(self, index: Index, changes: dict[bytes, Entry | None]) -> None:
        try:
            if self._is_behind:
                raise IndexUnusableError(f"more than {MAX_CHANGES} changes wait")
            index.write(changes)
            self._tail.settle()
        except (lmdb.Error, IndexUnusableError) as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        self._troubles.tell("index lost", error)
        if self._index is not None:
            self._index.close()
        self._index = None
        self._retry_s = time.monotonic() + AGAIN_S

    def _renew(self) -> None:
        catalog = self._catalog
        assert catalog is not None
        with self._writing:
            if self._index is not None:
                return  # another thread was faster
            try:
                index = self._make_index()
                with catalog.lock:
                    entries = list(catalog.entries())
                    self._index, self._changes, self._is_behind = index, {}, False
                    self._tail.turn()
                for at in range(0, len(entries), _AT_ONCE):
                    index.write(dict(entries[at : at + _AT_ONCE]))
                self._tail.settle()
            except (OSError, IndexUnusableError, lmdb.Error) as error:
                self._lose(error)
                return
        self._troubles.tell("index renewed", f"{len(entries)} values")

    def _run(self) -> None:
        while True:
            self._hurry.wait(EVERY_S)
            if self._is_ending:
                return
            self._hurry.clear()
            now_s = time.monotonic()
            if self._index is None and now_s >= self._retry_s:
                self._renew()
            if now_s >= self._uses_s and self._catalog is not None:
                self._uses_s = now_s + USES_EVERY_S
                self._catalog.note_uses()
            self.flush()
