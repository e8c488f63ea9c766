"""A ledger's book and its log, as one: what was written is there after any kill.

Purpose: a change is in the log before it is in the book, and the log is emptied when the book is
on the disk. A book that cannot be written is closed: opened again it has what the log has. Must not
know: tenants, stores. Runs in: the porter; the ledger's lock guards it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from itertools import islice

from server.tiers.disk.files import Files
from server.tiers.disk.troubles import Troubles
from server.tiers.interface import TierError
from server.tiers.ledger.book import Book, BookUnusableError
from server.tiers.ledger.log import Log
from server.tiers.ledger.rows import Change

MAX_LOG_BYTES = 8 << 20
"""With more in the log the next change waits for a commit."""

STOPPED = "nothing is written to the store until then"
"""Goes on from why a ledger cannot be written, and what to do."""

_MAKE_ROOM = "make room on its file system"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SLICE = 4096
_LEAST_ROOM_BYTES = 16 << 20
"""With less, a commit may not fit."""


class LedgerError(TierError):
    """The ledger cannot be read or written now."""


class LedgerBusyError(LedgerError):
    """Somebody else has it, perhaps waiting for its disk.

    Args:
        text: for people.
        still_s: for how long it has been committed by now.
    """

    def __init__(self, text: str, still_s: float) -> None:
        super().__init__(text)
        self.still_s = still_s


class Pages:
    """Both files, open.

    Attributes:
        book: for looking only.
        trouble: why something could not be appended; empty again after a ``try_out`` that went
            well. A change that is short may find room where others do not.
    """

    def __init__(self, files: Files, folder: str, max_values: int, troubles: Troubles) -> None:
        """Opens them, or makes them, and brings the book up to what the log has.

        Args:
            files: the system calls.
            folder: where they are.
            max_values: most that the book is to hold.
            troubles: what goes wrong is told there.

        Raises:
            LedgerError: they cannot be used.
        """
        self._files, self._folder, self._troubles = files, folder, troubles
        book: Book | None = None
        log: Log | None = None
        try:
            book = Book(os.path.join(folder, "book"), max_values)
            log = Log(files, os.path.join(folder, "log"))
            _bring_up(book, log)
        except (BookUnusableError, OSError) as error:
            for one in (book, log):
                if one is not None:
                    one.close()
            full = _shortage(files, folder)
            away = (
                "where that stays so move the folder away: what was written before counts no more"
            )
            raise LedgerError(f"ledger={folder} cannot be used: {error}; {full or away}") from None
        self.book, self._log = book, log
        self.trouble = ""
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether both can be used."""
        return self._is_open

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to commit."""
        return self._log.num_bytes > 0

    def write(self, changes: Sequence[Change], clock: int) -> None:
        """Makes changes: a kill after this does not undo them.

        Args:
            changes: in order.
            clock: no stamp is above it.

        Raises:
            LedgerError: none of them is made; or, where both are closed now, all are once they are
                opened again.
        """
        if not changes:
            return
        try:
            self._log.append(changes)
        except OSError as error:
            raise self._full(error) from None
        try:
            self.book.apply(changes)
        except BookUnusableError as error:
            raise self._lost(error) from None
        if self._log.num_bytes > MAX_LOG_BYTES:
            self.commit(clock)

    def try_out(self) -> None:
        """Looks whether what could not be appended last could be by now.

        Raises:
            LedgerError: it could not.
        """
        if self.trouble:
            try:
                self._log.try_out()
            except OSError as error:
                raise self._full(error) from None
            self.trouble = ""

    def _full(self, error: OSError) -> LedgerError:
        why = error.strerror or type(error).__name__
        self.trouble = f"{why}: {_MAKE_ROOM}" if error.errno in _NO_ROOM else why
        return self._told(self.trouble)

    def _told(self, why: str) -> LedgerError:
        text = f"ledger={self._folder} cannot be written: {why}"
        # The server's log has one line of a tier in some seconds: this one has to say it all.
        self._troubles.tell("ledger", f"{text}; {STOPPED}")
        return LedgerError(text)

    def commit(self, clock: int) -> None:
        """Returns when all is on the disk.

        Args:
            clock: no stamp is above it.

        Raises:
            LedgerError: both are closed; opened again they are as they should be.
        """
        try:
            self.book.commit(self._log.number, clock)
            self._log.empty()
        except BookUnusableError as error:
            raise self._lost(error) from None
        except OSError as error:
            self._troubles.tell("ledger", error.strerror)

    def _lost(self, error: Exception) -> LedgerError:
        why = "; ".join(filter(None, (str(error), _shortage(self._files, self._folder))))
        self.close()
        return self._told(why)

    def close(self) -> None:
        """Closes both. Idempotent."""
        if self._is_open:
            self._is_open = False
            self.book.close()
            self._log.close()


def _shortage(files: Files, folder: str) -> str:
    """What lmdb does not say: a write that finds no room is an input/output error to it."""
    try:
        is_full = files.room(folder)[1] < _LEAST_ROOM_BYTES
    except OSError:
        return ""
    return f"its file system is full, or nearly: {_MAKE_ROOM}" if is_full else ""


def _bring_up(book: Book, log: Log) -> None:
    changes = log.read(book.number)
    while some := list(islice(changes, _SLICE)):
        book.apply(some)
        book.clock = max([book.clock, *(max(row[1:3]) for _, row in some if row)])
    book.commit(log.number, book.clock)
    log.empty()
