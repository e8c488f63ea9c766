"""How full a shared folder is, whose its files are, and which of them go first.

Purpose: a thread walks the folder now and then, since others write and delete there, too; in
between this server counts what it does itself, exactly. Quotas decide by these sums. No file that
is not named like a value is ever touched. Must not know: what is in a value. Runs in: the porter's
worker threads, and a thread of its own.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

from server.core.tiers.parts import Share, Status
from server.tiers.disk.files import Files
from server.tiers.disk.holdings import Holdings, Room, Value, grouped
from server.tiers.disk.marks import Marks, tag_of
from server.tiers.disk.queues import MAX_CANDIDATES, Candidate, Queues
from server.tiers.disk.shares import NOBODY, Tenant, Whose, alone
from server.tiers.disk.troubles import Troubles
from server.tiers.disk.walker import Stripes, Walker, at_of

RESCAN_S = 60.0

TRIMMED = 256
"""Files that one call of ``trim`` removes at most."""

_MAX_GONE = 1 << 17
_SOON_S = 1.0
_STOP_S = 2.0
_CLEARING_S = 1.0
_TRIM_S = 5.0


class Keeper:
    """The sums and the candidates.

    What changes a file's place in the folder, and its counting, is done under one of some locks, by
    the folder that the file is in: so whoever counts that folder's files anew knows of each change
    either all or nothing.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        size_bytes: int,
        troubles: Troubles,
        rescan_s: float = RESCAN_S,
        marks: Marks | None = None,
        own: str = "",
    ) -> None:
        """Begins the first walk.

        Args:
            files: the system calls.
            folder: the shared one.
            size_bytes: most that it may take.
            troubles: what went wrong is told there.
            rescan_s: seconds from one walk to the next.
            marks: what files say of their salts.
            own: how unfinished files of this server begin, whose room is counted otherwise.
        """
        self._files = files
        self._folder = folder
        # What folders grow by until the next walk is not counted.
        self._most = size_bytes - max(1 << 18, size_bytes // 256)
        self._troubles = troubles
        self._rescan_s = rescan_s
        self._marks = marks or Marks(files)
        self._lock = threading.Condition()
        self._stripes = Stripes()
        self._is_clearing = False
        self._holdings = Holdings()
        self._walker = Walker(
            files, folder, self._marks, troubles, self._holdings, self._lock, self._stripes, own
        )
        self._queues = Queues(())
        self._reserved = 0
        #: Counts changes of who has quotas: a walk that began before does not hold.
        self._quotas = self._walked = 0
        #: Of a walk: what was used and cleared meanwhile, and folders that were made.
        self._used: deque[Candidate] | None = None
        self._left: set[bytes] = set()
        self._charged = 0
        #: Hashes of paths of files that this server removed since the last walk but one began.
        self._gone: set[int] = set()
        self._gone_before: set[int] = set()
        #: From when on a walk may begin because too few candidates are left.
        self._again_s = math.inf
        self._is_known = threading.Event()
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk-keeper", daemon=True)
        self._thread.start()

    @property
    def used_bytes(self) -> int:
        """Taken, as far as this server knows."""
        return self._holdings.live.size_bytes + self._reserved

    def wait_known(self, timeout_s: float) -> bool:
        """Whether the first walk is over; nothing is written before."""
        return self._is_known.wait(timeout_s)

    def held(self) -> tuple[tuple[tuple[bytes, int], ...], tuple[tuple[bytes, int], ...]]:
        """Bytes of namespaces, and of salts that have a quota."""
        with self._lock:
            return self._holdings.shares.spaces(), self._holdings.shares.salts()

    # --- room -----------------------------------------------------------------------------

    def reserve(self, num_bytes: int, whose: Whose = NOBODY) -> Room | Status:
        """Makes room for a file, removing others.

        Args:
            num_bytes: of the file, in whole blocks.
            whose: it will be.

        Returns:
            The room, which is placed or released later; or NO_ROOM, or OVER where quotas leave
            none.
        """
        give_up_s = time.monotonic() + _CLEARING_S
        while True:
            with self._lock:
                if not self._is_known.is_set():
                    return Status.NO_ROOM
                # What was cleared makes room before anything that is still wanted does.
                self._lock.wait_for(
                    lambda: self._has_room(num_bytes) or not self._is_clearing,
                    max(0.0, give_up_s - time.monotonic()),
                )
                shares, taker = self._holdings.shares, grouped(whose, self._marks.salts)
                over = shares.over(taker, num_bytes)
                if over is None and self._has_room(num_bytes):
                    room = Room(shares.number(taker), num_bytes)
                    shares.reserve(room.group, num_bytes)
                    self._reserved += num_bytes
                    return room
                # Who has less than its floor takes of others first, and its own if need be.
                candidate = self._queues.take(shares, NOBODY, over)
                candidate = candidate or self._queues.take(shares, taker, over)
                is_over = over is not None or not self._queues.is_empty
                if self._queues.is_worn and time.monotonic() > self._again_s:
                    self._wake.set()
            if candidate is None:
                self._wake.set()
                return Status.OVER if is_over else Status.NO_ROOM
            self._evict(candidate)

    def release(self, room: Room) -> None:
        """A file was not written."""
        with self._lock:
            self._free(room)

    def place(self, room: Room, unfinished: str, path: str, salt: bytes, used_ns: int) -> None:
        """Gives a file that was written its name, and counts it.

        Args:
            room: that was made for it; it is given back if this raises, by who asked for it.
            unfinished: the name that it has.
            path: the one that it gets.
            salt: digest of the salt under which it was stored, or empty.
            used_ns: the file's time.

        Raises:
            OSError: it cannot be.
        """
        at = at_of(path)
        with self._stripes.of(at.fan):
            before = self._walker.look(path)
            self._files.rename(unfinished, path)
            with self._lock:
                whose = grouped(Whose(bytes.fromhex(at.space), salt), self._marks.salts)
                value = Value(whose, room.num_bytes, room.num_bytes, tag_of(salt))
                self._free(room)
                self._change(path, before, value)
                self._add(Candidate(used_ns, path, value))

    def remove(self, path: str) -> None:
        """Removes a value; one that is gone does not matter.

        Args:
            path: of the file.

        Raises:
            OSError: it cannot be removed.
        """
        with self._stripes.of(at_of(path).fan):
            before = self._walker.look(path)
            try:
                self._files.remove(path)
            except FileNotFoundError:
                return
            with self._lock:
                self._change(path, before, None)

    def clear(self, fingerprint: bytes, target: str) -> bool:
        """Moves all of a namespace away by one rename; the files are removed behind it.

        Args:
            fingerprint: of the namespace.
            target: a name that begins with ``CLEARED``, and that nothing has.

        Returns:
            Whether there was anything.

        Raises:
            OSError: it cannot be moved.
        """
        path = os.path.join(self._folder, fingerprint.hex())
        with ExitStack() as stack:
            for stripe in self._stripes.all:
                stack.enter_context(stripe)
            try:
                self._files.rename(path, os.path.join(self._folder, target))
                is_there = True
            except FileNotFoundError:
                is_there = False
            with self._lock:
                self._holdings.clear(fingerprint)
                self._queues.drop(fingerprint)
                if self._used is not None:
                    self._left.add(fingerprint)
                    self._used = _without(self._used, fingerprint)
                self._is_clearing |= is_there
        if is_there:
            self._wake.set()
        return is_there

    def charge(self, num_bytes: int) -> None:
        """Counts what is taken whether there is room or not: a folder."""
        with self._lock:
            self._holdings.live.size_bytes += num_bytes
            self._charged += num_bytes

    def used(self, path: str, used_ns: int, found: os.stat_result) -> None:
        """A file was used: it goes after those before it.

        Args:
            path: of the file.
            used_ns: its time now.
            found: how it was.
        """
        try:
            value = self._walker.value(path, found)
        except FileNotFoundError:
            return  # another server removed it
        with self._lock:
            self._add(Candidate(used_ns, path, value, is_counted=False))

    def look_again(self) -> None:
        """Has the folder walked soon."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread. Idempotent."""
        self._ending.set()
        self._wake.set()
        self._thread.join(_STOP_S)

    # --- tenants --------------------------------------------------------------------------

    def set_quotas(self, quotas: Sequence[Share]) -> None:
        """Sets all quotas anew.

        Where there may be values of a salt that had none before, nothing is written until a walk
        has told how much that is.
        """
        with self._lock:
            salts = frozenset(one.tenant for one in quotas if one.is_salt)
            fresh = salts - self._marks.salts
            if salts != self._marks.salts:
                self._marks.look_for(salts)
            self._holdings.set_quotas(quotas, salts)
            shares = self._holdings.shares
            tenants: set[Tenant] = {*shares.floors, *shares.limits}
            if tenants == self._queues.tenants and not fresh:
                return
            self._quotas += 1
            if any(tag_of(salt) in self._holdings.live.tags for salt in fresh):
                self._is_known.clear()
                self._queues = Queues(tenants)
            else:
                self._queues = self._queues.among(tenants, salts)
        self._wake.set()

    def trim(self) -> bool:
        """Removes of tenants above their limit what they used longest ago, TRIMMED files at most.

        Returns:
            Whether there is more to remove.
        """
        if not self.wait_known(_TRIM_S):
            return False  # the walk does it at its end
        for _ in range(TRIMMED):
            candidate = self._too_much()
            if candidate is None:
                return False
            self._evict(candidate)
        return True

    def _too_much(self) -> Candidate | None:
        with self._lock:
            shares = self._holdings.shares
            for tenant in shares.excess():
                candidate = self._queues.take(shares, alone(tenant), tenant)
                if candidate is not None:
                    return candidate
                if self._queues.is_cut:
                    self._wake.set()  # another walk finds more of it
            return None if self._has_room(0) else self._queues.take(shares, NOBODY)

    # --- one file -------------------------------------------------------------------------

    def _has_room(self, num_bytes: int) -> bool:
        return self.used_bytes + num_bytes <= self._most

    def _free(self, room: Room) -> None:
        self._holdings.shares.reserve(room.group, -room.num_bytes)
        self._reserved -= room.num_bytes
        self._lock.notify_all()

    def _change(self, path: str, before: Value | None, after: Value | None) -> None:
        if before is not None:  # its salt had a quota when it was looked at
            before = before._replace(whose=grouped(before.whose, self._marks.salts))
        self._holdings.change(at_of(path), before, after)
        number = hash(path)
        if after is not None:
            self._gone.discard(number)
            self._gone_before.discard(number)
        elif len(self._gone) < _MAX_GONE:
            self._gone.add(number)
        self._lock.notify_all()

    def _add(self, candidate: Candidate) -> None:
        self._queues.add(candidate)
        if self._used is not None:
            self._used.append(candidate)

    def _evict(self, candidate: Candidate) -> None:
        path, value = candidate.path, candidate.value
        with self._stripes.of(at_of(path).fan):
            is_there, is_removed = True, False
            try:
                if self._files.stat(path).st_mtime_ns == candidate.used_ns:
                    self._files.remove(path)
                    is_removed = True
            except FileNotFoundError:
                is_there = False
            except OSError as error:
                self._troubles.tell("files left", error.strerror)
            with self._lock:
                self._holdings.shares.leave(value.whose, -value.length_bytes)
                is_lost = not is_there and candidate.is_counted and self._is_others(path)
                if is_removed or is_lost:
                    self._change(path, value, None)
        if is_removed:
            self._troubles.count("evicted")

    def _is_others(self, path: str) -> bool:
        """Whether another server removed a file: this one would know if it had."""
        number = hash(path)
        is_ours = number in self._gone or number in self._gone_before
        return not is_ours and len(self._gone) < _MAX_GONE

    # --- walks ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set():
            self._wake.clear()
            begin_s, self._again_s = time.monotonic(), math.inf
            try:
                self._remove_cleared()
                if not self._walk():
                    continue
                while (candidate := self._too_much()) is not None:
                    self._evict(candidate)
                with self._lock:
                    if self._walked == self._quotas:
                        self._is_known.set()
            except OSError as error:
                self._troubles.tell("folder unread", error.strerror)
            # At most half of the time is spent on walks, however fast candidates go.
            self._again_s = 2 * time.monotonic() - begin_s
            self._wake.wait(self._rescan_s)
            # Not one walk after the other while there is nothing to remove.
            if not self._is_clearing and self._is_known.is_set():
                self._ending.wait(min(_SOON_S, self._rescan_s))

    def _walk(self) -> bool:
        """Counts all that is there, cleans up, and finds what goes first.

        Returns:
            Whether it holds: others than before may have quotas since it began.
        """
        with self._lock:
            quotas, queues = self._quotas, Queues(self._queues.tenants)
            self._used, self._charged, self._left = deque(maxlen=MAX_CANDIDATES), 0, set()
            self._gone, self._gone_before = set(), self._gone
            self._marks.begin()
            self._holdings.begin()
        is_whole = False
        try:
            self._walker.walk(queues.gather)
            queues.settle()
            is_whole = True
        finally:
            with self._lock:
                used, self._used = self._used, None
                holds = is_whole and quotas == self._quotas
                if holds:
                    self._walked = quotas
                    self._marks.end()
                    self._holdings.end()
                    self._holdings.live.size_bytes += self._charged
                    for space in self._left:
                        queues.drop(space)
                    queues.merge(used or ())
                    # What they were is freed when the lock is: that takes a while, too.
                    self._queues, queues = queues, self._queues
                else:
                    self._holdings.abandon()
        return holds

    def _remove_cleared(self) -> None:
        try:
            self._walker.remove_cleared(self._uncount)
        finally:
            with self._lock:
                self._is_clearing = False
                self._lock.notify_all()

    def _uncount(self, num_bytes: int) -> None:
        with self._lock:
            live = self._holdings.live
            live.size_bytes = max(0, live.size_bytes - num_bytes)
            self._lock.notify_all()


def _without(candidates: deque[Candidate], space: bytes) -> deque[Candidate]:
    left = (one for one in candidates if one.value.whose.space != space)
    return deque(left, maxlen=candidates.maxlen)
