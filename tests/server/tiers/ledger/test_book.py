"""The book: rows, orders and sums are one another's, what was committed is there, and no more."""

from __future__ import annotations

import random
from pathlib import Path

import lmdb
import pytest

from server.tiers.ledger.book import Book, BookUnusableError
from server.tiers.ledger.rows import Row, Tenant

F, G, A, B = b"f" * 16, b"g" * 16, b"a" * 16, b"b" * 16


def packed(number: int, space: bytes = F) -> bytes:
    return space + number.to_bytes(20, "big")


def order(book: Book, tenant: Tenant) -> list[bytes]:
    return [name for name, _ in book.oldest(tenant)]


def test_what_was_used_longest_ago_comes_first(tmp_path: Path) -> None:
    book = Book(str(tmp_path / "book"), 1000)
    book.apply([(packed(n), Row(10, 100 - n, 1, A if n % 2 else b"")) for n in range(4)])
    book.apply([(packed(9, G), Row(10, 98, 1, A))])
    assert order(book, (False, F)) == [packed(n) for n in (3, 2, 1, 0)]
    assert order(book, (True, A)) == [packed(3), packed(9, G), packed(1)]
    assert order(book, (True, B)) == []
    found = [name for name, _ in book.oldest_of_all()]
    assert found[:2] == [packed(3), packed(9, G)] or found[0] == packed(3)
    book.apply([(packed(3), Row(10, 200, 1, A))])
    assert order(book, (True, A)) == [packed(9, G), packed(1), packed(3)]
    book.close()


def test_sums_equal_a_recount_after_any_changes(tmp_path: Path) -> None:
    draw = random.Random(3)
    book = Book(str(tmp_path / "book"), 1000)
    salts = {n: draw.choice((A, B, b"")) for n in range(40)}
    there: dict[bytes, Row] = {}
    for stamp in range(1, 1500):
        number = draw.randrange(40)
        name = packed(number, draw.choice((F, G)))
        if draw.random() < 0.3:
            there.pop(name, None)
            book.apply([(name, None)])
        else:
            there[name] = Row(draw.randrange(1, 99), stamp, draw.choice((0, stamp)), salts[number])
            book.apply([(name, there[name])] * draw.choice((1, 2)))
        if stamp % 200 == 0:
            book.commit(stamp, stamp)
    for tenant in ((False, F), (False, G), (True, A), (True, B)):
        mine = {name: row for name, row in there.items() if tenant[1] in (name[:16], row.salt)}
        assert book.held(tenant) == sum(row.num_bytes for row in mine.values())
        assert order(book, tenant) == sorted(mine, key=lambda name: mine[name].stamp)
    assert dict(book.spaces()) == {F: book.held((False, F)), G: book.held((False, G))}
    assert sorted(book.open_names()) == sorted(n for n, row in there.items() if row.is_open)
    assert book.count == len(there)
    assert all(book.row(name) == row for name, row in there.items())
    book.close()


def test_what_was_committed_is_there_and_nothing_else(tmp_path: Path) -> None:
    book = Book(str(tmp_path / "book"), 1000)
    book.apply([(packed(1), Row(10, 1, 1, A))])
    book.commit(7, 8)
    book.apply([(packed(1), None), (packed(2), Row(10, 2, 0))])
    assert (book.count, book.held((True, A))) == (1, 0)
    book.close()
    book = Book(str(tmp_path / "book"), 1000)
    assert (book.number, book.clock, book.count) == (7, 8, 1)
    assert book.held((True, A)) == 10
    assert book.open_names() == []
    book.close()


def test_a_file_that_is_not_ours_or_not_whole_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "other"), lock=False) as file, file.begin(write=True) as writing:
        writing.put(b"format", b"kvkeep disk index 2")
    with pytest.raises(BookUnusableError, match="its format is another"):
        Book(str(tmp_path / "other"), 1000)
    book = Book(str(tmp_path / "book"), 1000)
    book.apply([(packed(n), Row(10, n + 1, 0, A)) for n in range(500)])
    book.commit(1, 500)
    book.close()
    path = tmp_path / "book" / "data.mdb"
    path.write_bytes(path.read_bytes()[:16384])
    with pytest.raises(BookUnusableError, match="shorter than it says"):
        Book(str(tmp_path / "book"), 1000)
    path.write_bytes(b"\xff" * 16384)
    with pytest.raises(BookUnusableError):
        Book(str(tmp_path / "book"), 1000)


def test_a_file_that_is_full_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.tiers.ledger.book._LEAST_BYTES", 1 << 18)
    book = Book(str(tmp_path / "book"), 0)
    with pytest.raises(BookUnusableError, match="MDB_MAP_FULL"):
        book.apply([(packed(n), Row(10, n + 1, 0, A)) for n in range(5000)])
    book.close()
