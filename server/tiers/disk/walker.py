"""A walk through a shared folder: every file is looked at once.

Purpose: tells the holdings what is there, hands on each value, and removes what nobody finishes and
what was cleared. Must not know: what is done with values, quotas. Runs in: the keeper's thread.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator

from server.tiers.disk.files import Files
from server.tiers.disk.holdings import At, Holdings, Value
from server.tiers.disk.listed import FAN, FOLDER, VALUE
from server.tiers.disk.marks import Marks, tag_in
from server.tiers.disk.queues import Candidate
from server.tiers.disk.shares import Whose
from server.tiers.disk.troubles import Troubles

STALE_S = 3600.0
"""Age from which another server's unfinished file is one that nobody finishes."""

CLEARED = ".cleared-"
UNFINISHED = ".tmp-"

_STRIPES = 64
_BLOCK = 512


def at_of(path: str) -> At:
    """Where a file is."""
    return At(*path.rsplit("/", 3)[1:])


class Stripes:
    """Locks by the folder that a file is in.

    Attributes:
        all: of them, in the order in which whoever wants them all takes them.
    """

    def __init__(self) -> None:
        self.all = [threading.Lock() for _ in range(_STRIPES)]

    def of(self, fan: str) -> threading.Lock:
        """The one of a folder, of its name in hex."""
        return self.all[int(fan, 16) % _STRIPES]


class Walker:
    """Walks."""

    def __init__(
        self,
        files: Files,
        folder: str,
        marks: Marks,
        troubles: Troubles,
        holdings: Holdings,
        lock: threading.Condition,
        stripes: Stripes,
        own: str,
    ) -> None:
        """Looks at nothing yet.

        Args:
            files: the system calls.
            folder: the shared one.
            marks: what files say of their salts.
            troubles: what went wrong is told there.
            holdings: that count.
            lock: that guards them.
            stripes: what is done to a file, and counted, is done under its own.
            own: how unfinished files of this server begin, whose room is counted otherwise.
        """
        self._files = files
        self._folder = folder
        self._marks = marks
        self._troubles = troubles
        self._holdings = holdings
        self._lock = lock
        self._stripes = stripes
        self._own = own
        #: One object for all that are equal: candidates keep them.
        self._whose: dict[tuple[str, bytes], Whose] = {}

    def look(self, path: str) -> Value | None:
        """How a file counts, None if it is not there.

        Raises:
            OSError: it cannot be looked at.
        """
        try:
            return self.value(path, self._files.stat(path))
        except FileNotFoundError:
            return None

    def value(self, path: str, found: os.stat_result) -> Value:
        """How a file counts; one whose salt cannot be read counts for its namespace alone.

        Args:
            path: of it.
            found: how it is.

        Raises:
            FileNotFoundError: it is gone.
        """
        space, tag = path.rsplit("/", 3)[1], tag_in(found.st_size)
        whose = self._plain(space)
        if self._marks.matters(tag):
            try:
                salt = self._marks.salt(path, found.st_size)
            except FileNotFoundError:
                raise
            except OSError as error:
                self._troubles.tell("read errors", error.strerror)
            else:
                whose = self._whose.setdefault((space, salt), Whose(whose.space, salt))
        return Value(whose, found.st_size - tag, found.st_blocks * _BLOCK, tag)

    def _plain(self, space: str) -> Whose:
        found = self._whose.get((space, b""))
        if found is None:
            found = self._whose[space, b""] = Whose(bytes.fromhex(space))
        return found

    def walk(self, found: Callable[[Candidate], None]) -> None:
        """Tells the holdings, which were told that a walk begins, all that is there.

        Args:
            found: is told of each value.

        Raises:
            OSError: the folder cannot be listed.
        """
        self._whose.clear()
        names = self._files.names(self._folder)
        spaces = [name for name in names if FOLDER.fullmatch(name)]
        with self._lock:
            self._holdings.list_spaces(spaces)
        for name in names:
            if name.startswith(CLEARED):
                # Cleared meanwhile: it still takes room, and is removed in the next turn.
                self._walk_cleared(os.path.join(self._folder, name))
        for name in spaces:
            with self._lock:
                self._holdings.enter_space(name)
            space = os.path.join(self._folder, name)
            fans = [fan for fan in self._listed(space) if FAN.fullmatch(fan)]
            with self._lock:
                self._holdings.list_fans(fans)
            for fan in fans:
                self._walk_fan(os.path.join(space, fan), fan, found)

    def remove_cleared(self, gone: Callable[[int], None]) -> None:
        """Removes folders that were renamed to ``CLEARED`` and something.

        Args:
            gone: is told the bytes of each file.

        Raises:
            OSError: the folder cannot be listed.
        """
        for name in self._files.names(self._folder):
            if name.startswith(CLEARED):
                self._remove_tree(os.path.join(self._folder, name), gone)

    def _walk_fan(self, folder: str, fan: str, found: Callable[[Candidate], None]) -> None:
        # Whoever is at a file there right now has counted it before.
        with self._stripes.of(fan), self._lock:
            self._holdings.enter_fan(fan)
        values: dict[str, Value] = {}
        for name, path, stated in self._files_in(folder):
            if VALUE.fullmatch(name) is None or not stat.S_ISREG(stated.st_mode):
                self._count(stated.st_blocks * _BLOCK)
                continue
            try:
                values[name] = self.value(path, stated)
            except FileNotFoundError:
                continue
            found(Candidate(stated.st_mtime_ns, path, values[name]))
        with self._stripes.of(fan), self._lock:
            self._holdings.leave_fan(values)

    def _walk_cleared(self, folder: str) -> None:
        for fan in self._listed(folder):
            for _, _, found in self._files_in(os.path.join(folder, fan)):
                self._count(found.st_blocks * _BLOCK)

    def _files_in(self, folder: str) -> Iterator[tuple[str, str, os.stat_result]]:
        """Names, paths and what they are; those that nobody finishes are removed."""
        for name in self._listed(folder):
            path = os.path.join(folder, name)
            try:
                found = self._files.stat(path)
                if name.startswith(UNFINISHED):
                    if time.time() - found.st_mtime > STALE_S:
                        self._files.remove(path)
                        continue
                    if self._own and name.startswith(self._own):
                        continue
            except OSError:
                continue
            yield name, path, found

    def _count(self, num_bytes: int) -> None:
        with self._lock:
            self._holdings.count_other(num_bytes)

    def _listed(self, folder: str) -> list[str]:
        try:
            self._count(self._files.stat(folder).st_blocks * _BLOCK)
            return self._files.names(folder)
        except OSError:
            return []

    def _remove_tree(self, folder: str, gone: Callable[[int], None]) -> None:
        for fan in self._names(folder):
            for name in self._names(os.path.join(folder, fan)):
                path = os.path.join(folder, fan, name)
                try:
                    size_bytes = self._files.stat(path).st_blocks * _BLOCK
                    self._files.remove(path)
                except OSError:
                    continue
                gone(size_bytes)
            _remove_folder(os.path.join(folder, fan))
        _remove_folder(folder)

    def _names(self, folder: str) -> list[str]:
        try:
            return self._files.names(folder)
        except OSError:
            return []


def _remove_folder(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        pass
