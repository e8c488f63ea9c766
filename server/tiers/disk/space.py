"""Finds a slot for a value: a free one, a new segment's, another value's.

Purpose: the folder never takes more than its size. A segment is made while there is room for one;
then the value of the same slot length that goes first makes way; slots of another length, whole
segments of them, only when those were used longer ago. Must not know: names, the index file. Runs
in: the porter's worker threads; one at a time makes or removes segments.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable

from server.core.tiers.parts import Status
from server.tiers.disk.catalog import Catalog, Place
from server.tiers.disk.files import Files, status_of
from server.tiers.disk.plan import Plan
from server.tiers.disk.segments import MAX_SLOTS, Segment, create, file_name, reopen
from server.tiers.disk.shares import Tenant, Whose, alone
from server.tiers.disk.troubles import Troubles

FULL_S = 30.0
"""How long no new segment is tried after the file system had no room for one."""

SMALL_SEGMENTS = 64
"""While there are fewer, one that the file system has no room for is made shorter. Each costs a
descriptor."""

TRIMMED = 1024
"""Values taken out in one step of bringing tenants below their limits."""

VAIN_S = 1.0
"""How long nobody looks again where quotas let nothing go; or VAIN_TIMES as long as the look took:
it holds the lock that reads need."""

VAIN_TIMES = 16

MAX_VAIN = 256
"""Vain looks that are kept in mind."""

_TRIES = 8
"""Slots that others took meanwhile; then there is no room."""


class Space:
    """The segments of one folder."""

    def __init__(
        self,
        files: Files,
        folder: str,
        plan: Plan,
        catalog: Catalog,
        troubles: Troubles,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Knows of no segment yet.

        Args:
            files: the system calls.
            folder: of segments alone.
            plan: sizes.
            catalog: of the slots.
            troubles: what went wrong is told there.
            clock: seconds, never going back.
        """
        self._files = files
        self._folder = folder
        self._plan = plan
        self._catalog = catalog
        self._troubles = troubles
        self._clock = clock
        self._growing = threading.Lock()
        self._next = 1
        self._bytes = 0
        self._full_until_s = 0.0
        #: Whether the file system was full when the last segment was to be made.
        self.is_short = False
        #: Until when no look is worth while, by what was looked for, with the floors of then.
        self._vain_until_s: dict[Hashable, float] = {}
        self._vain_floors: dict[Tenant, int] = {}

    def reopen(self) -> dict[int, Segment]:
        """Opens the segments of an earlier run; those that cannot be are removed.

        Returns:
            By number, their slots all free; not in the catalog yet.

        Raises:
            OSError: the folder cannot be read.
        """
        found: dict[int, Segment] = {}
        for name in sorted(self._files.names(self._folder)):
            try:
                segment = reopen(self._files, self._folder, name)
            except OSError as error:
                self._troubles.tell("segment lost", error)
                self._unlink(os.path.join(self._folder, name))
                continue
            if segment is None:
                continue
            self._next = max(self._next, segment.number + 1)
            if segment.number in found or not segment.count:
                self._files.close(segment.fd)
                self._unlink(segment.path)
                continue
            found[segment.number] = segment
        return found

    def admit(self, segments: dict[int, Segment]) -> list[Segment]:
        """Puts reopened segments into the catalog, the latest used first, as far as there is room.

        Args:
            segments: what ``reopen`` returned, with what the index says adopted.

        Returns:
            Those that were removed, since there is no room for them.
        """

        def age(segment: Segment) -> int:
            return int(segment.stamps.max(initial=0))

        removed = []
        for segment in sorted(segments.values(), key=age, reverse=True):
            if not segment.used or self._bytes + segment.length > self._plan.data_bytes:
                self._files.close(segment.fd)
                self._unlink(segment.path)
                removed.append(segment)
                continue
            self._bytes += segment.length
            self._catalog.add(segment)
        return removed

    def take(self, slot_bytes: int, taker: Whose) -> Place | Status:
        """A slot to write into.

        Args:
            slot_bytes: of the slot, a multiple of BLOCK_BYTES.
            taker: whose value it will hold.

        Returns:
            The slot, or why there is none: NO_ROOM; OVER where a quota leaves none; or ERROR when
            the folder is in trouble.
        """
        for _ in range(_TRIES):
            place = self._taken(slot_bytes, taker)
            if place is not None:
                return place
            with self._growing:
                place = self._taken(slot_bytes, taker)
                if place is not None:
                    return place
                status = self._make_way(slot_bytes, taker)
            if status is not Status.OK:
                return status
        return Status.NO_ROOM

    def trim(self) -> bool:
        """Takes out of tenants above their limit some of what goes first.

        Returns:
            Whether there is more to take out.
        """
        left = TRIMMED
        for tenant in self._catalog.excess():
            while tenant in self._catalog.excess() and self._evict_own(tenant, alone(tenant)):
                left -= 1
                if not left:
                    return True
        return False

    def _taken(self, slot_bytes: int, taker: Whose) -> Place | None:
        with self._catalog.lock:
            if self._catalog.shares.over(taker, slot_bytes) is not None:
                return None
            return self._catalog.take(slot_bytes, taker)

    def close(self) -> None:
        """Closes all files; nothing is read or written any more."""
        for segment in self._catalog.segments.values():
            self._files.close(segment.fd)

    def _make_way(self, slot_bytes: int, taker: Whose) -> Status:
        tenant = self._catalog.shares.over(taker, slot_bytes)
        guarded = self._catalog.shares.guarded_for(taker)
        if tenant is not None:
            while self._catalog.shares.over(taker, slot_bytes) == tenant:
                begun_s = self._clock()
                if self._is_vain((tenant, guarded)):
                    return Status.OVER
                if not self._evict_own(tenant, taker):
                    return self._give_up((tenant, guarded), begun_s)
            return Status.OK
        status = self._grow(slot_bytes)
        if status is not Status.NO_ROOM:
            return status
        if self._evict(slot_bytes, taker):
            return Status.OK
        # All that were chosen are gone: time to look at the whole, which takes a while.
        begun_s = self._clock()
        if self._is_vain((slot_bytes, guarded)):
            return Status.OVER
        segment = self._catalog.coldest(slot_bytes, taker)
        if segment is not None and self._catalog.remove(segment, taker):
            self._files.close(segment.fd)
            self._unlink(segment.path)
            self._bytes -= segment.length
            self._troubles.count("segments recut")
            # It was not the file system that had no room.
            self._full_until_s = 0.0
            return Status.OK
        if self._catalog.choose(slot_bytes, taker) and self._evict(slot_bytes, taker):
            return Status.OK
        if not self._catalog.shares.floors or not self._catalog.count:
            return Status.NO_ROOM
        return self._give_up(
            (slot_bytes, guarded), begun_s
        )  # others still may find room: their own

    def _is_vain(self, wanted: Hashable) -> bool:
        """Whether quotas let nothing go when somebody looked for the like a moment ago."""
        floors = self._catalog.shares.floors
        if floors is not self._vain_floors:
            self._vain_floors, self._vain_until_s = floors, {}  # quotas were set anew
        return self._clock() < self._vain_until_s.get(wanted, 0.0)

    def _give_up(self, wanted: Hashable, begun_s: float) -> Status:
        if len(self._vain_until_s) >= MAX_VAIN:
            self._vain_until_s.clear()
        now_s = self._clock()
        self._vain_until_s[wanted] = now_s + max(VAIN_S, VAIN_TIMES * (now_s - begun_s))
        return Status.OVER

    def _evict(self, slot_bytes: int, taker: Whose) -> bool:
        is_evicted = self._catalog.evict(slot_bytes, taker)
        if is_evicted:
            self._troubles.count("evicted")
        return is_evicted

    def _evict_own(self, tenant: Tenant, taker: Whose) -> bool:
        is_evicted = self._catalog.evict_own(tenant, taker)
        if is_evicted:
            self._troubles.count("evicted")
        return is_evicted

    def _grow(self, slot_bytes: int) -> Status:
        """Makes a segment; NO_ROOM when the folder's size or the file system has none for it."""
        if self._catalog.is_full or self._clock() < self._full_until_s:
            return Status.NO_ROOM
        room = self._plan.data_bytes - self._bytes
        length = min(max(self._plan.segment_bytes, slot_bytes), room)
        if len(self._catalog.segments) < SMALL_SEGMENTS:
            length = min(length, max(slot_bytes, self._left()))
        count = min(MAX_SLOTS, length // slot_bytes)
        if not count:
            return Status.NO_ROOM
        number, self._next = self._next, self._next + 1
        try:
            segment = create(self._files, self._folder, number, slot_bytes, count)
        except OSError as error:
            status = status_of(error)
            kind = "disk full" if status is Status.NO_ROOM else "write errors"
            path = os.path.join(self._folder, file_name(number, slot_bytes))
            self._troubles.tell(kind, f"{path}: {error.strerror}")
            self._full_until_s = self._clock() + FULL_S * (status is Status.NO_ROOM)
            self.is_short = status is Status.NO_ROOM
            return Status.NO_ROOM if status is Status.NO_ROOM else Status.ERROR
        if not segment.is_direct:
            self._troubles.tell("cached", "O_DIRECT is refused here: reads and writes are cached")
        self._bytes += segment.length
        self.is_short = False
        self._catalog.add(segment)
        return Status.OK

    def _left(self) -> int:
        """Of the file system, what one segment may take of it: others and the index grow, too."""
        try:
            return self._files.room(self._folder)[1] // 4 * 3
        except OSError:
            return self._plan.data_bytes  # making it says what is wrong

    def _unlink(self, path: str) -> None:
        try:
            self._files.remove(path)
        except OSError as error:
            self._troubles.tell("files left", error)
