"""What is under way, and what was seen of a store since the ledger's book was last written.

Purpose: who reads or asks never waits for a file: what it saw is noted here in passing, and the
ledger takes it over when it writes next. All of it is bounded; what is left out errs to the safe
side, that a value counts though it is gone. Must not know: files, stores. Runs in: the porter, any
thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

MAX_NOTED = 65_536
"""Names of each kind; further uses and absences are left out."""

AT_ONCE = 2048
"""Taken over in one go."""


class Notes:
    """Names, packed.

    Args:
        clock: the highest stamp so far.
    """

    def __init__(self, clock: int) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._flying: Counter[bytes] = Counter()
        self._leaving: Counter[bytes] = Counter()
        self._ended: dict[bytes, int] = {}
        self._used: dict[bytes, int] = {}
        self._gone: dict[bytes, int] = {}
        #: Since when the store has answered, by the monotonic clock; None: not seen to since.
        self._unsure: dict[bytes, float | None] = {}
        self._has_more_unsure = False

    @property
    def clock(self) -> int:
        """No stamp is above it."""
        return self._clock

    def tick(self) -> int:
        """A stamp above all others so far."""
        with self._lock:
            self._clock += 1
            return self._clock

    def fly(self, names: Iterable[bytes]) -> None:
        """Writes of values begin."""
        with self._lock:
            self._flying.update(names)

    def land(self, names: Sequence[bytes], is_there: bool) -> None:
        """Writes of values are over.

        Args:
            names: of them.
            is_there: whether the store has them; else nobody knows.
        """
        with self._lock:
            for name in names:
                _less(self._flying, name)
                if is_there:
                    self._clock += 1
                    self._ended[name] = self._clock
        if not is_there:
            self.doubt(names)

    def fall(self, names: Sequence[bytes]) -> None:
        """Writes of values are over, and none of them did anything."""
        with self._lock:
            for name in names:
                _less(self._flying, name)

    def again(self, ended: dict[bytes, int]) -> None:
        """What was taken over of writes' ends could not be written: it is noted as before."""
        with self._lock:
            self._ended = {**ended, **self._ended}

    def doubt(self, names: Iterable[bytes]) -> None:
        """Writes of values ended as nobody knows."""
        with self._lock:
            for name in names:
                if name in self._unsure or len(self._unsure) < MAX_NOTED:
                    self._unsure[name] = None
                else:
                    self._has_more_unsure = True

    def settled(self, now_s: float, settle_s: float, most: int) -> list[bytes]:
        """The store answers: which of those may be asked for by now. They are not noted any more.

        Args:
            now_s: by the monotonic clock.
            settle_s: so long after the store was first seen to answer nothing comes any more.
            most: names at most.
        """
        with self._lock:
            for name, since_s in self._unsure.items():
                if since_s is None:
                    self._unsure[name] = now_s
            due = (
                name
                for name, since_s in self._unsure.items()
                if since_s is not None and since_s + settle_s <= now_s
            )
            found = list(islice(due, most))
            for name in found:
                del self._unsure[name]
        return found

    def is_unsure(self, name: bytes) -> bool:
        """Whether a write of it ended as nobody knows, and may still come."""
        return name in self._unsure

    def has_room_for_unsure(self) -> bool:
        """Whether some of those were left out, and there is room for them now. Told once."""
        with self._lock:
            has_room = self._has_more_unsure and not self._unsure
            self._has_more_unsure &= not has_room
            return has_room

    def leave(self, names: Iterable[bytes]) -> None:
        """Values are about to be removed: none of them is written until ``left``."""
        with self._lock:
            self._leaving.update(names)

    def left(self, names: Iterable[bytes]) -> None:
        """Ends what ``leave`` began."""
        with self._lock:
            for name in names:
                _less(self._leaving, name)

    def is_flying(self, name: bytes) -> bool:
        """Whether a write of it is under way."""
        return name in self._flying

    def last_write(self, name: bytes) -> tuple[bool, int]:
        """Whether a write of it is under way, and when one ended that nobody took over yet."""
        with self._lock:
            return name in self._flying, self._ended.get(name, 0)

    def is_leaving(self, name: bytes) -> bool:
        """Whether it is being removed."""
        return name in self._leaving

    def used(self, names: Iterable[bytes]) -> None:
        """Values were read."""
        with self._lock:
            for name in names:
                self._clock += 1
                if name in self._used or len(self._used) < MAX_NOTED:
                    self._used[name] = self._clock

    def gone(self, names: Iterable[bytes], asked: int) -> None:
        """The store said that it has no such values.

        Args:
            names: of them.
            asked: a stamp from before it was asked.
        """
        with self._lock:
            for name in names:
                if name in self._gone or len(self._gone) < MAX_NOTED:
                    self._gone[name] = max(asked, self._gone.get(name, 0))

    def take(self) -> tuple[dict[bytes, int], dict[bytes, int], dict[bytes, int]]:
        """Takes over some: stamps of writes that ended, of uses, and from before absences.

        Uses and absences are given only when no end of a write is left that came before them.
        """
        with self._lock:
            ended = _some(self._ended)
            used = {} if self._ended else _some(self._used)
            gone = {} if self._ended else _some(self._gone)
        return ended, used, gone


def _less(counter: Counter[bytes], name: bytes) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]


def _some(noted: dict[bytes, int]) -> dict[bytes, int]:
    found = dict(islice(noted.items(), AT_ONCE))
    for name in found:
        del noted[name]
    return found
