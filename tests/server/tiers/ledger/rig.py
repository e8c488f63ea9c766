"""A store in memory for ledgers, in which all goes wrong that does with real ones, and kills.

A put may end in an error and come later all the same; a value may go by itself. ``Killed`` ends
whatever is under way where a countdown says so: before or after any write of a file, and before or
after the store did something. What a killed ledger leaves is what ``kill`` leaves: all that it
wrote, nothing that it still meant to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from server.core.tiers.parts import Status
from server.tiers.disk.files import Files
from server.tiers.disk.troubles import Troubles
from server.tiers.interface import HEADER_BYTES, Health, Name, Part, TierError
from server.tiers.ledger.book import Book
from server.tiers.ledger.ledger import MAX_VALUES, Ledger
from server.tiers.ledger.tier import LedgerTier

F, G = b"f" * 16, b"g" * 16
A, B = b"a" * 16, b"b" * 16
PAYLOAD = 1000
VALUE = HEADER_BYTES + PAYLOAD
STORE = "valkey://store:1"


class Killed(BaseException):
    """The process is no more."""


class Countdown:
    """Counts down to a kill; only in the thread that made it."""

    def __init__(self) -> None:
        self._left = -1
        self._thread = threading.get_ident()

    def set(self, left: int) -> None:
        """Kills at the so many-th point from now; below 0 not at all."""
        self._left = left

    def point(self) -> None:
        if threading.get_ident() == self._thread and self._left >= 0:
            self._left -= 1
            if self._left < 0:
                raise Killed

    @property
    def is_over(self) -> bool:
        return self._left < 0


class DyingFiles(Files):
    """System calls with a point before and after each write, and one in its middle."""

    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._countdown.point()
        try:
            self._countdown.point()
        except Killed:
            super().pwritev(fd, [buffers[0][: len(buffers[0]) // 2]], offset)
            raise
        written = super().pwritev(fd, buffers, offset)
        self._countdown.point()
        return written


class Shelf:
    """What outlives porters: values, and puts that are still on their way."""

    def __init__(self) -> None:
        self.kept: dict[Name, bytes] = {}
        self.coming: dict[Name, bytes] = {}

    def come(self) -> None:
        """All that is on its way arrives."""
        self.kept.update(self.coming)
        self.coming.clear()


class ModelStore:
    """One porter's engine; see above.

    Attributes:
        fails: puts end in an error, and their values are on their way.
        refuses: puts are refused.
        is_away: nothing is answered.
        deleted: names of each call.
        put: names of each call.
    """

    def __init__(self, shelf: Shelf, countdown: Countdown | None = None) -> None:
        self.shelf = shelf
        self._countdown = countdown or Countdown()
        self.fails = self.refuses = self.is_away = False
        self._doubted: set[Name] = set()
        self.deleted: list[list[Name]] = []
        self.put: list[list[Name]] = []
        self.is_closed = False

    def _ask(self) -> None:
        if self.is_away:
            raise TierError("it is away")

    def batch_exists(self, names: Sequence[Name]) -> list[bool]:
        self._ask()
        return [name in self.shelf.kept for name in names]

    def batch_get_into(self, parts: Sequence[Part]) -> list[Status]:
        return self.touch([part.name for part in parts])

    def touch(self, names: Sequence[Name]) -> list[Status]:
        if self.is_away:
            return [Status.ERROR] * len(names)
        return [Status.OK if name in self.shelf.kept else Status.ABSENT for name in names]

    def batch_put(self, parts: Sequence[Part]) -> list[Status]:
        self.put.append([part.name for part in parts])
        statuses = []
        for part in parts:
            if self.fails:
                self._countdown.point()
                self.shelf.coming[part.name] = bytes(part.payload)
                self._doubted.add(part.name)
                statuses.append(Status.ERROR)
            elif self.refuses:
                statuses.append(Status.NO_ROOM)
            else:
                self._countdown.point()
                self.shelf.coming[part.name] = bytes(part.payload)
                self._countdown.point()
                self.shelf.coming.pop(part.name)
                self.shelf.kept[part.name] = bytes(part.payload)
                statuses.append(Status.OK)
        self._countdown.point()
        return statuses

    def delete(self, names: Sequence[Name]) -> None:
        self.deleted.append(list(names))
        self._ask()
        for name in names:
            self._countdown.point()
            self.shelf.kept.pop(name, None)
        self._countdown.point()
        if self._doubted.intersection(names, self.shelf.coming):
            raise TierError("one may come again")

    def clear(self, fingerprint: bytes) -> None:
        self.delete([name for name in self.shelf.kept if name.fingerprint == fingerprint])
        if any(name.fingerprint == fingerprint for name in self.shelf.coming):
            raise TierError("one may come again")

    def health(self) -> Health:
        return Health(ok=not self.is_away)

    def register(self, address: int, size_bytes: int) -> None:
        pass

    def unregister(self, address: int, size_bytes: int) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def ledger(
    folder: Path, countdown: Countdown | None = None, max_values: int = MAX_VALUES
) -> Ledger:
    files = DyingFiles(countdown) if countdown is not None else Files()
    made = Ledger(str(folder), STORE, Troubles("store"), files, max_values)
    made.ask_wait_s = 20.0  # a test's disk may be slow, which is not what most tests are about
    return made


def opened(
    folder: Path,
    store: ModelStore,
    countdown: Countdown | None = None,
    clock: Clock | None = None,
    max_values: int = MAX_VALUES,
) -> LedgerTier:
    made = ledger(folder, countdown, max_values)
    return LedgerTier(store, made, "valkey", Troubles("store"), clock or Clock())


Open = Callable[..., tuple[LedgerTier, ModelStore]]
"""Of the fixture ``begun``."""


def kill(tier: LedgerTier) -> None:
    """Leaves a ledger's files as kill -9 does: the book has its last commit, the log the rest."""
    made = tier._ledger
    made._is_ending.set()
    made._thread.join(10)
    with made._lock:
        assert made._pages is not None
        made._pages.close()
    made._hold.release()


def name(number: int, space: bytes = F) -> Name:
    return Name(space, number.to_bytes(16, "big"), 0)


def part(number: int, salt: bytes = b"", space: bytes = F) -> Part:
    return Part(
        name=name(number, space),
        header=memoryview(bytearray(HEADER_BYTES)),
        room=memoryview(bytearray(4096)),
        payload_bytes=PAYLOAD,
        address=0,
        salt=salt,
    )


def put(tier: LedgerTier, salt: bytes, *numbers: int, space: bytes = F) -> list[Status]:
    """Writes values of one tenant."""
    return tier.batch_put([part(number, salt, space) for number in numbers])


def book_of(tier: LedgerTier) -> Book:
    assert tier._ledger._pages is not None
    return tier._ledger._pages.book


def rows(tier: LedgerTier) -> dict[Name, bytes]:
    """Names that are in the ledger, and their salts: read from the book, beside all sums."""
    found = {}
    book = book_of(tier)
    for space, _ in book.spaces():
        for packed, row in book.oldest((False, space)):
            found[Name(packed[:16], packed[16:32], int.from_bytes(packed[32:], "big"))] = row.salt
    return found
