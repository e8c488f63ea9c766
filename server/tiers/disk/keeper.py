"""How full a shared folder is, and which of its files go first.

Purpose: a thread walks the folder now and then, since others write and delete there, too; in
between this server counts what it does itself. No file that is not named like a value is ever
touched. Must not know: values. Runs in: the porter's worker threads, and a thread of its own.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from heapq import nlargest, nsmallest
from typing import NamedTuple

from server.tiers.disk.files import Files
from server.tiers.disk.troubles import Troubles

RESCAN_S = 60.0
MAX_CANDIDATES = 65_536
"""Files that are known as the next to go; about 20 MB."""

STALE_S = 3600.0
"""Age from which another server's unfinished file is one that nobody finishes."""

CLEARED = ".cleared-"
UNFINISHED = ".tmp-"
_FOLDER = re.compile(r"[0-9a-f]{32}")
_FAN = re.compile(r"[0-9a-f]{2}")
_VALUE = re.compile(r"[0-9a-f]{32}-[0-9]{1,10}")
_SOON_S = 1.0
_STOP_S = 2.0
_CLEARING_S = 1.0
_LIST_S = 4.0
_BLOCK = 512


class Candidate(NamedTuple):
    """A file, as it was when it was looked at.

    Attributes:
        used_ns: its time of change, which each use sets.
        path: of the file.
        size_bytes: it takes on the disk.
    """

    used_ns: int
    path: str
    size_bytes: int


class Keeper:
    """The count and the candidates.

    Attributes:
        used_bytes: taken, as far as this server knows.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        size_bytes: int,
        troubles: Troubles,
        rescan_s: float = RESCAN_S,
    ) -> None:
        """Begins the first walk.

        Args:
            files: the system calls.
            folder: the shared one.
            size_bytes: most that it may take.
            troubles: what went wrong is told there.
            rescan_s: seconds from one walk to the next.
        """
        self._files = files
        self._folder = folder
        # What folders grow by until the next walk is not counted.
        self._most = size_bytes - max(1 << 18, size_bytes // 256)
        self._troubles = troubles
        self._rescan_s = rescan_s
        self._lock = threading.Condition()
        self._is_clearing = False
        self._candidates: deque[Candidate] = deque()
        self._added = 0
        self._found_bytes = 0
        self.used_bytes = 0
        self._is_known = threading.Event()
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk-keeper", daemon=True)
        self._thread.start()

    def wait_known(self, timeout_s: float) -> bool:
        """Whether the first walk is over; nothing is written before."""
        return self._is_known.wait(timeout_s)

    def reserve(self, num_bytes: int) -> bool:
        """Makes room for a file, removing others; False if there is none."""
        if not self._is_known.is_set():
            return False
        give_up_s = time.monotonic() + _CLEARING_S
        while True:
            with self._lock:
                # What was cleared makes room before anything that is still wanted does.
                self._lock.wait_for(
                    lambda: self._has_room(num_bytes) or not self._is_clearing,
                    max(0.0, give_up_s - time.monotonic()),
                )
                if self._has_room(num_bytes):
                    self.used_bytes += num_bytes
                    self._added += num_bytes
                    return True
                if not self._candidates:
                    break
                candidate = self._candidates.popleft()
            self._evict(candidate)
        self._wake.set()
        return False

    def charge(self, num_bytes: int) -> None:
        """Counts what is taken whether there is room or not: a folder."""
        with self._lock:
            self.used_bytes += num_bytes
            self._added += num_bytes

    def release(self, num_bytes: int) -> None:
        """A file is gone, or was not written."""
        with self._lock:
            self.used_bytes = max(0, self.used_bytes - num_bytes)
            self._lock.notify_all()

    def used(self, path: str, used_ns: int, size_bytes: int) -> None:
        """A file was written or used: it goes after those before it."""
        with self._lock:
            if len(self._candidates) < MAX_CANDIDATES:
                self._candidates.append(Candidate(used_ns, path, size_bytes))

    def latest(self, fingerprint: bytes, shard: int, most: int) -> list[bytes]:
        """Keys of the values of one shard of a namespace, those used last first.

        Args:
            fingerprint: 16 bytes.
            shard: which.
            most: keys wanted, at most.

        Returns:
            Those found within some seconds, for somebody waits: not all of a very large folder.
        """
        folder, suffix = os.path.join(self._folder, fingerprint.hex()), f"-{shard}"
        found = nlargest(most, self._used(folder, suffix, time.monotonic() + _LIST_S))
        return [bytes.fromhex(name[: -len(suffix)]) for _, name in found]

    def _used(self, folder: str, suffix: str, end_s: float) -> Iterator[tuple[int, str]]:
        for fan in self._names(folder):
            if time.monotonic() > end_s:
                return
            for name in self._names(os.path.join(folder, fan)) if _FAN.fullmatch(fan) else ():
                if name.endswith(suffix) and _VALUE.fullmatch(name):
                    try:
                        path = os.path.join(folder, fan, name)
                        yield self._files.stat(path).st_mtime_ns, name
                    except OSError:
                        pass  # another server removed it

    def _names(self, folder: str) -> list[str]:
        try:
            return self._files.names(folder)
        except OSError:
            return []

    def namespaces(self) -> set[bytes]:
        """Fingerprints of those that have a folder.

        Raises:
            OSError: nobody knows.
        """
        try:
            names = self._files.names(self._folder)
        except FileNotFoundError:
            return set()
        return {bytes.fromhex(name) for name in names if _FOLDER.fullmatch(name)}

    def cleared(self) -> None:
        """Has folders removed that were renamed to ``CLEARED`` and something."""
        with self._lock:
            self._is_clearing = True
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread. Idempotent."""
        self._ending.set()
        self._wake.set()
        self._thread.join(_STOP_S)

    def _has_room(self, num_bytes: int) -> bool:
        return self.used_bytes + num_bytes <= self._most

    def _evict(self, candidate: Candidate) -> None:
        try:
            if self._files.stat(candidate.path).st_mtime_ns != candidate.used_ns:
                return
            self._files.remove(candidate.path)
        except FileNotFoundError:
            # Another server was faster, and the next walk counts it.
            return
        except OSError as error:
            self._troubles.tell("files left", error.strerror)
            return
        self._troubles.count("evicted")
        self.release(candidate.size_bytes)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._wake.clear()
            try:
                self._remove_cleared()
                self._walk()
                self._is_known.set()
            except OSError as error:
                self._troubles.tell("folder unread", error.strerror)
            self._wake.wait(self._rescan_s)
            # Not one walk after the other while there is nothing to remove.
            if not self._is_clearing:
                self._ending.wait(min(_SOON_S, self._rescan_s))

    def _walk(self) -> None:
        with self._lock:
            self._added = 0
        self._found_bytes = 0
        oldest = nsmallest(MAX_CANDIDATES, self._values())
        with self._lock:
            # What was written meanwhile may be counted twice, until the next walk.
            self.used_bytes = self._found_bytes + self._added
            self._candidates = deque(oldest)
        while True:
            with self._lock:
                if self._has_room(0) or not self._candidates:
                    return
                candidate = self._candidates.popleft()
            self._evict(candidate)

    def _values(self) -> Iterator[Candidate]:
        """Counts all that is there, cleans up, and yields the values."""
        for name in self._files.names(self._folder):
            path = os.path.join(self._folder, name)
            is_cleared = name.startswith(CLEARED)
            if is_cleared or _FOLDER.fullmatch(name):
                for fan in self._listed(path):
                    if _FAN.fullmatch(fan):
                        found = self._fan(os.path.join(path, fan))
                        # Cleared meanwhile: it still takes room, and is removed in the next turn.
                        yield from (one for one in found if not is_cleared)

    def _fan(self, folder: str) -> Iterator[Candidate]:
        for name in self._listed(folder):
            path = os.path.join(folder, name)
            try:
                found = self._files.stat(path)
            except OSError:
                continue
            size_bytes = found.st_blocks * _BLOCK
            is_value = _VALUE.fullmatch(name) is not None and stat.S_ISREG(found.st_mode)
            if name.startswith(UNFINISHED) and time.time() - found.st_mtime > STALE_S:
                self._evict(Candidate(found.st_mtime_ns, path, 0))
                continue
            self._found_bytes += size_bytes
            if is_value:
                yield Candidate(found.st_mtime_ns, path, size_bytes)

    def _listed(self, folder: str) -> list[str]:
        try:
            self._found_bytes += self._files.stat(folder).st_blocks * _BLOCK
            return self._files.names(folder)
        except OSError:
            return []

    def _remove_cleared(self) -> None:
        try:
            for name in self._files.names(self._folder):
                if name.startswith(CLEARED):
                    self._remove_tree(os.path.join(self._folder, name))
        finally:
            with self._lock:
                self._is_clearing = False
                self._lock.notify_all()

    def _remove_tree(self, folder: str) -> None:
        for fan in self._listed(folder):
            for name in self._listed(os.path.join(folder, fan)):
                path = os.path.join(folder, fan, name)
                try:
                    size_bytes = self._files.stat(path).st_blocks * _BLOCK
                    self._files.remove(path)
                except OSError:
                    continue
                self.release(size_bytes)
            self._remove_folder(os.path.join(folder, fan))
        self._remove_folder(folder)

    def _remove_folder(self, folder: str) -> None:
        try:
            os.rmdir(folder)
        except OSError:
            pass
