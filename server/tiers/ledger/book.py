"""The ledger's file: each value that may be in the store, whose it is, and what was used when.

Purpose: an lmdb file in which everything lies that grows with the number of values, so that memory
does not. One transaction stays open and is committed now and then, to the disk: what it has not
committed yet is in the log. Sums of tenants are rows of it as well, so they are as whole as what
they count. Must not know: the log, stores, limits. Runs in: the porter; the ledger's lock guards
it.
"""

from __future__ import annotations

import heapq
import os
import struct
from collections.abc import Iterator, Sequence
from struct import Struct

import lmdb

from protocol.ids import ID_BYTES
from server.tiers.ledger.rows import Change, Row, Tenant, pack_row, tenants_of, unpack_row

FORMAT = b"kvkeep ledger 1"
ROOM_BYTES = 1024
"""Of the file for each value, at most: its three rows take some 250 bytes, pages are two thirds
full, and a commit leaves as many behind as it changed, twice, before they are used again."""

_LEAST_BYTES = 64 << 20
_ORDER = Struct(">?16sQ")
_SUM = Struct("<QQ")
_STATE = Struct("<QQ")
_TABLES = (b"values", b"order", b"sums", b"open")


class BookUnusableError(Exception):
    """Not our file, not whole, or it cannot be written."""


class Book:
    """One file, open.

    Attributes:
        count: values.
        number: of the last change in the last commit.
        clock: the highest stamp in the last commit, or above.
    """

    def __init__(self, folder: str, max_values: int) -> None:
        """Opens it, or makes it when there is none.

        Args:
            folder: of the file alone.
            max_values: most that it is to hold.

        Raises:
            BookUnusableError: see there.
            OSError: the folder cannot be made.
        """
        os.makedirs(folder, 0o700, exist_ok=True)
        try:
            # Our own lock keeps others away, and the ledger's keeps threads apart.
            self._environment = lmdb.open(
                folder,
                map_size=_LEAST_BYTES + max_values * ROOM_BYTES,
                mode=0o600,
                lock=False,
                readahead=False,
                max_dbs=len(_TABLES),
            )
        except lmdb.Error as error:
            raise BookUnusableError(str(error)) from error
        try:
            self._open(os.path.join(folder, "data.mdb"))
        except (lmdb.Error, struct.error, BookUnusableError) as error:
            self._environment.close()
            raise BookUnusableError(str(error)) from error

    def _open(self, path: str) -> None:
        pages = self._environment.info()["last_pgno"] + 1
        # Where the file is shorter than its map, a look at the map would end the process.
        if os.stat(path).st_size < pages * self._environment.stat()["psize"]:
            raise BookUnusableError("the file is shorter than it says")
        with self._environment.begin(write=True) as transaction:
            found = transaction.get(b"format")
            if found is None and not transaction.stat()["entries"]:
                transaction.put(b"format", FORMAT)
            elif found != FORMAT:
                raise BookUnusableError("its format is another")
            state = transaction.get(b"state")
        self._values, self._order, self._sums, self._opened = (
            self._environment.open_db(table) for table in _TABLES
        )
        self.number, self.clock = _STATE.unpack(state) if state else (0, 0)
        self._begin()
        self.count = sum(count for _, count, _ in self._all_sums(is_salt=False))

    def _begin(self) -> None:
        self._transaction = self._environment.begin(write=True)

    # --- looking --------------------------------------------------------------------------

    def row(self, name: bytes) -> Row | None:
        """What is known of a value."""
        found = self._transaction.get(name, db=self._values)
        return None if found is None else unpack_row(found)

    def held(self, tenant: Tenant) -> int:
        """Bytes of all values of a tenant."""
        return self._sum(tenant)[1]

    def spaces(self) -> list[tuple[bytes, int]]:
        """Namespaces and their bytes."""
        return [(name, size) for name, _, size in self._all_sums(is_salt=False)]

    def oldest(self, tenant: Tenant) -> Iterator[tuple[bytes, Row]]:
        """A tenant's values, the one used longest ago first; nothing changes meanwhile."""
        for _, name in self._stamped(tenant):
            row = self.row(name)
            assert row is not None, "an order without its value"
            yield name, row

    def oldest_of_all(self) -> Iterator[tuple[bytes, Row]]:
        """All values, likewise."""
        spaces = [self._stamped((False, name)) for name, _ in self.spaces()]
        for _, name in heapq.merge(*spaces):
            row = self.row(name)
            assert row is not None, "an order without its value"
            yield name, row

    def open_names(self) -> list[bytes]:
        """Values of which it is not known how their last write ended."""
        with self._transaction.cursor(self._opened) as cursor:
            return [bytes(name) for name in cursor.iternext(values=False)]

    def _stamped(self, tenant: Tenant) -> Iterator[tuple[int, bytes]]:
        first = _ORDER.pack(*tenant, 0)
        with self._transaction.cursor(self._order) as cursor:
            if not cursor.set_range(first):
                return
            for key, name in cursor:
                if key[: 1 + ID_BYTES] != first[: 1 + ID_BYTES]:
                    return
                yield _ORDER.unpack(key)[2], name

    def _sum(self, tenant: Tenant) -> tuple[int, int]:
        found = self._transaction.get(_ORDER.pack(*tenant, 0)[: 1 + ID_BYTES], db=self._sums)
        count, num_bytes = _SUM.unpack(found) if found else (0, 0)
        return count, num_bytes

    def _all_sums(self, is_salt: bool) -> list[tuple[bytes, int, int]]:
        first = bytes([is_salt])
        found = []
        with self._transaction.cursor(self._sums) as cursor:
            if cursor.set_range(first):
                for key, packed in cursor:
                    if key[:1] != first:
                        break
                    found.append((key[1:], *_SUM.unpack(packed)))
        return found

    # --- changing -------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change]) -> None:
        """Makes changes, in order; the same ones again change nothing.

        Raises:
            BookUnusableError: some of them are not made; the book is of no use any more.
        """
        sums: dict[Tenant, tuple[int, int]] = {}
        try:
            for name, row in changes:
                self._apply(name, row, sums)
            for tenant, found in sums.items():
                self._set_sum(tenant, *found)
        except lmdb.Error as error:
            raise BookUnusableError(str(error)) from error

    def _apply(self, name: bytes, row: Row | None, sums: dict[Tenant, tuple[int, int]]) -> None:
        transaction, before = self._transaction, self.row(name)
        if before is not None and (row is None or row.stamp != before.stamp):
            for tenant in tenants_of(name, before.salt):
                transaction.delete(_ORDER.pack(*tenant, before.stamp), db=self._order)
        if row is None:
            if before is not None:
                transaction.delete(name, db=self._values)
                transaction.delete(name, db=self._opened)
                self._count(name, before, -1, sums)
            return
        assert before is None or before.salt == row.salt, "a value changes hands"
        transaction.put(name, pack_row(row), db=self._values)
        if before is None or row.stamp != before.stamp:
            for tenant in tenants_of(name, row.salt):
                transaction.put(_ORDER.pack(*tenant, row.stamp), name, db=self._order)
        if row.is_open:
            transaction.put(name, b"", db=self._opened)
        elif before is not None and before.is_open:
            transaction.delete(name, db=self._opened)
        if before is None or before.num_bytes != row.num_bytes:
            if before is not None:
                self._count(name, before, -1, sums)
            self._count(name, row, 1, sums)

    def _count(self, name: bytes, row: Row, by: int, sums: dict[Tenant, tuple[int, int]]) -> None:
        self.count += by
        for tenant in tenants_of(name, row.salt):
            count, num_bytes = sums.get(tenant) or self._sum(tenant)
            sums[tenant] = count + by, num_bytes + by * row.num_bytes

    def _set_sum(self, tenant: Tenant, count: int, num_bytes: int) -> None:
        key = _ORDER.pack(*tenant, 0)[: 1 + ID_BYTES]
        if count:
            self._transaction.put(key, _SUM.pack(count, num_bytes), db=self._sums)
        else:
            self._transaction.delete(key, db=self._sums)

    def commit(self, number: int, clock: int) -> None:
        """Returns when all that was changed is on the disk.

        Args:
            number: of the last change.
            clock: no stamp is above it.

        Raises:
            BookUnusableError: it is not; the book is of no use any more.
        """
        try:
            self._transaction.put(b"state", _STATE.pack(number, clock))
            self._transaction.commit()
            self._begin()
        except lmdb.Error as error:
            raise BookUnusableError(str(error)) from error

    def close(self) -> None:
        """Closes the file; what was not committed is not in it. Idempotent."""
        self._transaction.abort()
        self._environment.close()
