"""A slab's folder, open: its lock, index, catalog, segments and journal.

Purpose: brings them up in order, from whatever an earlier run, a crash or somebody's hand left
there. Must not know: parts, statuses. Runs in: the porter, at start and when a lost folder came
back.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from server.tiers.disk import index as index_files
from server.tiers.disk.catalog import Catalog
from server.tiers.disk.entries import Entry
from server.tiers.disk.files import Files
from server.tiers.disk.hold import Hold
from server.tiers.disk.index import Index, IndexUnusableError
from server.tiers.disk.journal import Journal
from server.tiers.disk.plan import Plan
from server.tiers.disk.segments import Segment, State
from server.tiers.disk.shares import Shares
from server.tiers.disk.space import Space
from server.tiers.disk.tail import Tail
from server.tiers.disk.troubles import Troubles

SEGMENTS = "segments"
INDEX = "index"
STARTS = "starts"

MAX_STARTS = 3
"""Starts in a row that came to no commit; an index that ends the process when it is read would
otherwise end it for ever."""


class Store:
    """What is open.

    Attributes:
        is_new: whether the folder was missing.
        hold: the folder's lock.
        catalog: what is where.
        space: the segments.
        journal: writes the index.
    """

    def __init__(self, files: Files, folder: str, plan: Plan, troubles: Troubles) -> None:
        """Opens a folder, or makes it.

        Args:
            files: the system calls.
            folder: absolute path.
            plan: sizes.
            troubles: what went wrong is told there.

        Raises:
            TierError: another server uses it.
            OSError: it cannot be used.
        """
        self._files, self._folder, self._plan = files, folder, plan
        self._troubles = troubles
        self.is_new = files.make_folder(folder)
        self.hold = Hold(files, folder)
        try:
            segments = os.path.join(folder, SEGMENTS)
            files.make_folder(segments)
            self._opening()
        except BaseException:
            self.hold.release()
            raise

    def _opening(self) -> None:
        starts = self._starts()
        try:
            self._bring_up(starts)
        except Exception:
            # The process outlives it, so it is not the index that ends it.
            self._set_starts(starts)
            raise

    def _bring_up(self, starts: int) -> None:
        plan, troubles = self._plan, self._troubles
        if starts >= MAX_STARTS:
            troubles.tell("index lost", f"{starts} starts came to nothing")
            index_files.remove(self._index_folder)
        self._set_starts(starts + 1)
        tail = Tail(self._files, self._folder, plan.tail_bytes, troubles)
        try:
            self._bring_back(tail)
        except BaseException:
            tail.close()
            raise

    def _bring_back(self, tail: Tail) -> None:
        plan, troubles = self._plan, self._troubles
        self.journal = Journal(self._files, self._new_index, tail, troubles)
        self.catalog = Catalog(plan.age_bytes, plan.max_values, self.journal.note)
        folder = os.path.join(self._folder, SEGMENTS)
        self.space = Space(self._files, folder, plan, self.catalog, troubles)
        segments = self.space.reopen()
        try:
            index, stale = self._read_index(segments, tail.read())
        except BaseException:
            for segment in segments.values():
                self._files.close(segment.fd)
            raise
        # What could not be entered, and what there is no room for any more, leaves the index, too.
        stale += [name for one in self.space.admit(segments) for name in one.used_names()]
        self._set_starts(0)
        self.journal.start(self.catalog, index)
        with self.catalog.lock:
            for name in stale:
                self.journal.note(name, None)

    def close(self) -> None:
        """Writes the index and closes everything; nothing is read or written any more."""
        self.journal.stop()
        self.space.close()
        self.hold.release()

    @property
    def _index_folder(self) -> str:
        return os.path.join(self._folder, INDEX)

    def _new_index(self) -> Index:
        index_files.remove(self._index_folder)
        return Index(self._index_folder, self._plan.index_bytes)

    def _read_index(
        self, segments: dict[int, Segment], changes: dict[bytes, Entry | None]
    ) -> tuple[Index, list[bytes]]:
        index: Index | None = None
        try:
            index = Index(self._index_folder, self._plan.index_bytes)
            index.prove(changes)
            shares = self.catalog.shares
            stale = [name for rows in index.rows() for name in adopt(segments, shares, *rows)]
            for segment in segments.values():
                segment.adopted()
            return index, stale
        except (IndexUnusableError, OSError) as error:
            self._troubles.tell("index lost", error)
            if index is not None:
                index.close()
        # Whatever was adopted of it is as good as any: each value proves itself. But an index that
        # broke off is no list of what there is, so it is begun anew and nothing is kept.
        for segment in segments.values():
            segment.empty()
        try:
            return self._new_index(), []
        except IndexUnusableError as error:
            raise OSError(0, str(error), self._index_folder) from error

    def _starts(self) -> int:
        try:
            with open(os.path.join(self._folder, STARTS), "rb") as file:
                text = file.read(8)
            return int(text or b"0")
        except (OSError, ValueError):
            return 0

    def _set_starts(self, number: int) -> None:
        path = os.path.join(self._folder, STARTS)
        try:
            fd = self._files.open(path, os.O_WRONLY | os.O_CREAT)
            try:
                self._files.pwritev(fd, [memoryview(b"%d\n" % number)], 0)
            finally:
                self._files.close(fd)
        except OSError as error:
            # It only guards against an index that ends the process.
            self._troubles.tell("write errors", error.strerror)


def adopt(
    segments: dict[int, Segment],
    shares: Shares,
    names: NDArray[np.uint8],
    entries: NDArray[np.void],
) -> list[bytes]:
    """Enters some of what an index says into segments that nothing was taken of.

    Args:
        segments: by number.
        shares: knows groups.
        names: uint8[n, NAME_BYTES].
        entries: ENTRY_DTYPE[n].

    Returns:
        Names whose slot is not there, or is another's already.
    """
    if not len(entries):
        return []
    order = np.lexsort((entries["slot"], entries["segment"]))
    names, entries = names[order], entries[order]
    salts = np.ascontiguousarray(entries["salt"]).view(np.uint8).reshape(len(entries), -1)
    groups = shares.numbers(names, salts)
    numbers, begins = np.unique(entries["segment"], return_index=True)
    ends = [*begins.tolist()[1:], len(entries)]
    is_stale = np.ones(len(entries), bool)
    for number, begin, end in zip(numbers.tolist(), begins.tolist(), ends, strict=True):
        segment = segments.get(number)
        if segment is None or not segment.count:
            continue
        slots = entries["slot"][begin:end].astype(np.int64)
        is_good = slots < segment.count
        is_good[1:] &= slots[1:] != slots[:-1]
        is_good &= segment.states[np.minimum(slots, segment.count - 1)] == State.FREE
        good = np.flatnonzero(is_good) + begin
        some = entries[good]
        segment.adopt(slots[is_good], names[good], some["stamp"], some["uses"], groups[good])
        is_stale[good] = False
    return [one.tobytes() for one in names[is_stale]]
