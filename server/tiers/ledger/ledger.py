"""The ledger of a store: what this server wrote there, counted by tenant, exact through any kill.

Purpose: a value is entered before the store gets it and struck out after the store has lost it, so
at every moment all that this server may have in the store is counted. Who is at its limit is told
which of its own values must go first. Changes are in the log before anything else happens, without
waiting for the disk; a thread commits them to the book once a second. A kill loses nothing; a crash
of the machine may lose what was entered in the last two seconds. Must not know: any store. Runs in:
the porter, on its worker threads and one of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from heapq import nlargest
from itertools import islice

from server.core.tiers.parts import MAX_SHARES, Share
from server.tiers.disk.files import Files
from server.tiers.disk.troubles import Troubles
from server.tiers.ledger.book import Book
from server.tiers.ledger.folder import held
from server.tiers.ledger.notes import Notes
from server.tiers.ledger.pages import LedgerBusyError, LedgerError, Pages
from server.tiers.ledger.rows import Change, Row, Taken, Tenant, Wanted, tenants_of
from server.tiers.ledger.settling import settle

MAX_VALUES = 4 << 20
"""Values of one ledger; at more those used longest ago make room. Up to 1 KiB of file for each."""

COMMIT_S = 1.0
MAX_VICTIMS = 512
"""Values that go in one request."""

AGES = 32
"""A use is entered only of what was not among the last 32nd to be used."""

_LOOKED_AT = 8192
_SLICE = 4096
_WAIT_S = 2.0
"""Who writes or removes waits so long for a disk that stands still."""

ASK_WAIT_S = 0.5
"""A check-up does, which all questions wait for."""

_STOP_S = 5.0


class Ledger:
    """One folder, in use by one porter.

    Attributes:
        notes: what is under way, and what was seen of the store.
        ask_wait_s: see ``ASK_WAIT_S``.
    """

    def __init__(
        self,
        folder: str,
        store: str,
        troubles: Troubles,
        files: Files | None = None,
        max_values: int = MAX_VALUES,
    ) -> None:
        """Opens the folder, or makes it.

        Args:
            folder: absolute path.
            store: which store it is of, in one line without secrets.
            troubles: what goes wrong is told there.
            files: the system calls; None for the real ones.
            max_values: most that are in it.

        Raises:
            TierError: it cannot be used, is of another store, or another server uses it.
        """
        self._files = files or Files()
        self._folder, self._max_values = folder, max_values
        self._troubles = troubles
        self._lock = threading.Lock()
        self._committing_since_s: float | None = None
        self.ask_wait_s = ASK_WAIT_S
        self._limits: dict[Tenant, int] = {}
        #: Set without the lock; taken over under it, so that they stay as they are meanwhile.
        self._set_limits: dict[Tenant, int] = {}
        self._salts: tuple[bytes, ...] = ()
        self._told: tuple[tuple[tuple[bytes, int], ...], ...] = ((), ())
        self._pages: Pages | None = None
        self._is_gone = False
        self._hold = held(self._files, folder, store)
        try:
            book = self._open()
        except BaseException:
            self._hold.release()
            raise
        self.notes = Notes(book.clock)
        self.notes.doubt(book.open_names())
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def _open(self) -> Book:
        self._pages = Pages(self._files, self._folder, self._max_values, self._troubles)
        return self._pages.book

    @property
    def is_open(self) -> bool:
        """Whether it can be read and written; else ``look`` tries again."""
        return self._pages is not None and self._pages.is_open

    # --- entering and striking out --------------------------------------------------------

    def enter(self, wanted: Sequence[Wanted]) -> Taken:
        """Enters values before they are written, as far as limits leave room for them.

        Args:
            wanted: in order. What is above a limit by itself, or is just being removed, is neither
                entered nor waits.

        Returns:
            What became of each. ``notes.land`` is owed for what was entered.

        Raises:
            LedgerError: nothing was entered.
        """
        with self._settled_book() as book:
            taken, changes = Taken(), dict[bytes, Row]()
            added: dict[Tenant, int] = {}
            short: dict[Tenant | None, int] = {}
            for at, one in enumerate(wanted):
                if self.notes.is_leaving(one.name):
                    continue
                row = changes.get(one.name) or book.row(one.name)
                if row is None:
                    full = self._full(book, one, added, len(changes))
                    for tenant in full:
                        short[tenant] = short.get(tenant, 0) + one.num_bytes
                    if full or self._is_too_long(one):
                        taken.waiting += [at] if full else []
                        continue
                    for owner in tenants_of(one.name, one.salt):
                        added[owner] = added.get(owner, 0) + one.num_bytes
                    row = Row(one.num_bytes, 0, 0, one.salt)
                    taken.new.add(one.name)
                changes[one.name] = row._replace(stamp=self.notes.tick(), ended=0)
                taken.entered.append(at)
            self._write([*changes.items()])
            self.notes.fly(wanted[at].name for at in taken.entered)
            for short_of, num_bytes in short.items():
                taken.victims += self._victims(book, short_of, num_bytes)
            return taken

    def _full(
        self, book: Book, one: Wanted, added: dict[Tenant, int], num_new: int
    ) -> list[Tenant | None]:
        """Who must lose something before a value is entered; None stands for anybody."""
        if self._is_too_long(one):
            return []
        full: list[Tenant | None] = []
        for tenant in tenants_of(one.name, one.salt) if self._limits else ():
            if tenant in self._limits:
                num_bytes = book.held(tenant) + added.get(tenant, 0) + one.num_bytes
                full += [tenant] if num_bytes > self._limits[tenant] else []
        if not full and book.count + num_new >= self._max_values:
            full.append(None)
        return full

    def _is_too_long(self, one: Wanted) -> bool:
        tenants = tenants_of(one.name, one.salt) if self._limits else ()
        return any(one.num_bytes > self._limits.get(tenant, one.num_bytes) for tenant in tenants)

    def _victims(self, book: Book, tenant: Tenant | None, num_bytes: int) -> list[bytes]:
        """Values that had better go, oldest first, until so many more bytes have room."""
        # A little more than that, so that not each write waits for a removal.
        if tenant is None:
            rows, spare_bytes = book.oldest_of_all(), 3 * num_bytes
        else:
            limit = self._limits.get(tenant, 0)
            rows, spare_bytes = book.oldest(tenant), min(limit // 64, 3 * num_bytes)
            num_bytes += book.held(tenant) - limit
        found: list[bytes] = []
        for name, row in islice(rows, _LOOKED_AT):
            is_enough = num_bytes <= 0 and num_bytes + spare_bytes < row.num_bytes
            if is_enough or len(found) >= MAX_VICTIMS:
                break
            if row.is_open or self._is_busy(name):
                continue  # what may still come would come after its removal
            found.append(name)
            num_bytes -= row.num_bytes
        self.notes.leave(found)
        return found

    def _is_busy(self, name: bytes) -> bool:
        notes = self.notes
        return notes.is_leaving(name) or notes.is_flying(name) or notes.is_unsure(name)

    def removed(self, names: Sequence[bytes], asked: int) -> None:
        """The store was told to remove values, and has; ends what ``notes.leave`` began.

        Args:
            names: of them; what was written meanwhile, if anything, counts on.
            asked: a stamp from before.

        Raises:
            LedgerError: they still count.
        """
        try:
            for at in range(0, len(names), _SLICE):
                with self._settled_book() as book:
                    self._strike(book, names[at : at + _SLICE], asked)
        finally:
            self.notes.left(names)

    def refused(self, names: Sequence[bytes]) -> None:
        """The store took no room for values that were ``new``; ends what ``enter`` began.

        Args:
            names: of them; one that may come from another write counts on.

        Raises:
            LedgerError: they count until the store was asked for them.
        """
        self.notes.fall(names)
        try:
            with self._settled_book() as book:
                rows = [(name, book.row(name)) for name in names if not self._is_busy(name)]
                mine = [name for name, row in rows if row is not None and row.is_open]
                self._write([(name, None) for name in mine if not self.notes.last_write(name)[1]])
        except LedgerError:
            self.notes.doubt(names)
            raise

    def cleared(self, fingerprint: bytes, asked: int) -> None:
        """The same of all values of a namespace.

        Args:
            fingerprint: of it.
            asked: a stamp from before the first of its values went.

        Raises:
            LedgerError: some still count.
        """
        has_more = True
        while has_more:
            with self._settled_book() as book:
                names = [name for name, _ in islice(book.oldest((False, fingerprint)), _SLICE)]
                has_more = self._strike(book, names, asked) > 0

    def _strike(self, book: Book, names: Iterable[bytes], asked: int) -> int:
        gone: list[Change] = []
        for name in names:
            row = book.row(name)
            # Its last write may have ended only now, behind what was taken over before.
            is_flying, ended = self.notes.last_write(name)
            if row is not None and not is_flying:
                written = max(ended, row.stamp if row.is_open else row.ended)
                gone += [(name, None)] if written <= asked else []
        self._write(gone)
        return len(gone)

    # --- tenants --------------------------------------------------------------------------

    def set_limits(self, quotas: Iterable[Share]) -> None:
        """Sets all limits anew; waits for nothing."""
        quotas = list(quotas)
        self._salts = tuple(one.tenant for one in quotas if one.is_salt)
        self._set_limits = {(one.is_salt, one.tenant): one.limit_bytes for one in quotas if one[3]}

    def excess(self) -> tuple[bool, list[bytes]]:
        """Whether a tenant is above its limit, and victims of it, as ``enter`` names them.

        Raises:
            LedgerError: nobody knows.
        """
        with self._settled_book() as book:
            over = [one for one, most in self._limits.items() if book.held(one) > most]
            for tenant in over:
                victims = self._victims(book, tenant, 0)
                if victims:
                    return True, victims
            return bool(over), []

    def of_salt(self, salt: bytes, most: int) -> list[bytes]:
        """Names of values of a salt.

        Raises:
            LedgerError: nobody knows.
        """
        with self._settled_book() as book:
            return [name for name, _ in islice(book.oldest((True, salt)), most)]

    def shares(self, is_waiting: bool = True) -> tuple[tuple[tuple[bytes, int], ...], ...]:
        """Bytes of namespaces, the fullest first, and of salts that have a quota."""
        try:
            with self._settled_book(self.ask_wait_s if is_waiting else 0.0) as book:
                spaces = nlargest(MAX_SHARES, book.spaces(), key=lambda one: one[1])
                salts = tuple((salt, book.held((True, salt))) for salt in self._salts)
                self._told = tuple(spaces), salts
        except LedgerError:
            pass  # what was told last is the best that there is
        return self._told

    # --- what was seen of the store -------------------------------------------------------

    def answered(self, name: bytes, is_there: bool, asked: int) -> None:
        """The store was asked for a value whose last write ended as nobody knew.

        Args:
            name: of it.
            is_there: what it said.
            asked: a stamp from before.

        Raises:
            LedgerError: it is as before.
        """
        with self._settled_book(self.ask_wait_s) as book:
            row = book.row(name)
            is_flying, ended = self.notes.last_write(name)
            if row is None or not row.is_open or is_flying or max(row.stamp, ended) > asked:
                return
            self._write([(name, row._replace(ended=asked) if is_there else None)])

    def open_names(self) -> list[bytes]:
        """Values of which it is not known how their last write ended.

        Raises:
            LedgerError: nobody knows.
        """
        with self._settled_book() as book:
            return book.open_names()

    def has(self, name: bytes) -> bool:
        """Whether a value is in it.

        Raises:
            LedgerError: nobody knows.
        """
        with self._settled_book(self.ask_wait_s) as book:
            return book.row(name) is not None

    def revive(self) -> None:
        """Opens it again if it could not be written, and looks whether it can be by now.

        Raises:
            LedgerError: it cannot be.
        """
        with self._held(self.ask_wait_s):
            self._look_whether_gone()
            pages, has_room = self._pages, self.notes.has_room_for_unsure()
            if pages is not None and pages.is_open:
                pages.try_out()
                names = pages.book.open_names() if has_room else []
            else:
                names = self._open().open_names()
            self.notes.doubt([name for name in names if not self.notes.is_flying(name)])

    def settle(self) -> None:
        """Enters what was noted; where that cannot be done it stays noted."""
        with suppress(LedgerError), self._settled_book():
            pass

    @contextmanager
    def _held(self, wait_s: float) -> Iterator[None]:
        if not self._lock.acquire(timeout=wait_s):
            since_s = self._committing_since_s
            still_s = 0.0 if since_s is None else time.monotonic() - since_s
            raise LedgerBusyError(f"ledger={self._folder}: its disk is slow", still_s)
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _settled_book(self, wait_s: float = _WAIT_S) -> Iterator[Book]:
        with self._held(wait_s):
            yield self._settled()

    def _settled(self) -> Book:
        """The book, with what was noted meanwhile."""
        self._look_whether_gone()
        pages = self._pages
        if pages is None or not pages.is_open:
            raise LedgerError(f"ledger={self._folder} cannot be written")
        book, self._limits = pages.book, self._set_limits
        taken = self.notes.take()
        changes = settle(book.row, self.notes.is_flying, taken, book.count // AGES)
        try:
            self._write([*changes.items()])
        except LedgerError:
            self.notes.again(taken[0])
            raise
        return book

    def _look_whether_gone(self) -> None:
        # What were entered now the next porter would not find.
        if self._is_gone:
            raise LedgerError(
                f"ledger={self._folder} was moved or removed: put it back, or restart the server, "
                "for which all that was written before counts for nobody"
            )

    # --- files ----------------------------------------------------------------------------

    def _write(self, changes: Sequence[Change]) -> None:
        assert self._pages is not None
        self._pages.write(changes, self.notes.clock)

    def _run(self) -> None:
        while not self._is_ending.wait(COMMIT_S):
            self._step()

    def _step(self) -> bool:
        """Commits; whether there was anything to commit."""
        self._is_gone = not self._hold.is_held()
        with self._lock:
            try:
                self._settled()
                assert self._pages is not None
                has_changes = self._pages.has_changes
                if has_changes:
                    self._committing_since_s = time.monotonic()
                    self._pages.commit(self.notes.clock)
            except LedgerError:
                return False
            finally:
                self._committing_since_s = None
            return has_changes

    def close(self) -> None:
        """Writes what was noted, and closes it. Idempotent."""
        if self._is_ending.is_set():
            return
        self._is_ending.set()
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            return  # it stands still at a disk, and all is in the log
        while self._step():
            pass
        with self._lock:
            if self._pages is not None:
                self._pages.close()
            self._hold.release()
