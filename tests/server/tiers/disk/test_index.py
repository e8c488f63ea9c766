"""The index file: what was written is read, what is not ours or not whole is said to be so."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import pytest

from server.tiers.disk import index as index_files
from server.tiers.disk.entries import Entry
from server.tiers.disk.index import Index, IndexUnusableError, unpacked
from server.tiers.disk.plan import ENTRY_ROOM_BYTES, MIB, NAME_BYTES

MAP_BYTES = 8 * MIB


def name(number: int) -> bytes:
    return os.urandom(0) + number.to_bytes(NAME_BYTES, "big")


def everything(index: Index) -> dict[bytes, Entry]:
    return {
        bytes(one): unpacked(entry)
        for names, entries in index.rows()
        for one, entry in zip(names, entries, strict=True)
    }


def test_what_was_written_is_read_after_a_restart(tmp_path: Path) -> None:
    index = Index(str(tmp_path / "index"), MAP_BYTES)
    assert everything(index) == {}
    entries = {name(n): Entry(n % 7, n, 3, 1 << 40 | n) for n in range(1000)}
    index.write(entries)
    index.write({name(3): None, name(4): Entry(1, 2, 3, 4), name(5000): None})
    index.prove({name(6): None})
    del entries[name(6)]
    index.close()
    del entries[name(3)]
    entries[name(4)] = Entry(1, 2, 3, 4)
    index = Index(str(tmp_path / "index"), MAP_BYTES)
    assert everything(index) == entries
    index.close()
    assert os.stat(tmp_path / "index" / "data.mdb").st_mode & 0o077 == 0


def test_a_value_takes_no_more_of_the_file_than_is_counted_for_it(tmp_path: Path) -> None:
    index = Index(str(tmp_path / "index"), 64 * MIB)
    number, step = 8_000, 500
    for begin in range(0, 3 * number, step):
        index.write({os.urandom(NAME_BYTES): Entry(1, n, 1, n) for n in range(step)})
        if begin >= number:
            rows = next(iter(index.rows()))[0]
            index.write({bytes(one): None for one in rows[:: len(rows) // step]})
    size = os.stat(tmp_path / "index" / "data.mdb").st_size
    count = len(everything(index))
    index.close()
    assert size <= count * ENTRY_ROOM_BYTES + MIB // 4


def broken_length(data: Path) -> None:
    os.truncate(data, data.stat().st_size // 2 // 4096 * 4096)


def broken_head(data: Path) -> None:
    with open(data, "r+b") as file:
        file.write(os.urandom(8192))


def foreign(data: Path) -> None:
    data.write_bytes(b"SQLite format 3\0" * 1000)


def of_another_program(data: Path) -> None:
    data.unlink()
    with lmdb.open(str(data.parent), lock=False) as environment, environment.begin(write=True) as t:
        t.put(b"theirs", b"1")


def of_another_format(data: Path) -> None:
    with lmdb.open(str(data.parent), lock=False) as environment, environment.begin(write=True) as t:
        t.put(b"format", b"kvkeep disk index 9")


@pytest.mark.parametrize(
    "spoil", [broken_length, broken_head, foreign, of_another_program, of_another_format]
)
def test_what_is_not_ours_or_not_whole_is_refused(tmp_path: Path, spoil: object) -> None:
    folder = tmp_path / "index"
    index = Index(str(folder), MAP_BYTES)
    index.write({name(n): Entry(1, n, 1, n) for n in range(5000)})
    index.close()
    assert callable(spoil)
    spoil(folder / "data.mdb")
    with pytest.raises(IndexUnusableError):
        Index(str(folder), MAP_BYTES)
    index_files.remove(str(folder))
    index = Index(str(folder), MAP_BYTES)
    assert everything(index) == {}
    index.close()


def test_entries_of_another_length_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    Index(str(folder), MAP_BYTES).close()
    with lmdb.open(str(folder), lock=False) as environment, environment.begin(write=True) as t:
        t.put(b"x" * NAME_BYTES, b"short")
    index = Index(str(folder), MAP_BYTES)
    with pytest.raises(IndexUnusableError, match="another length"):
        everything(index)
    index.close()


def test_a_full_index_says_so(tmp_path: Path) -> None:
    index = Index(str(tmp_path / "index"), MIB)
    with pytest.raises(lmdb.MapFullError):
        index.write({os.urandom(NAME_BYTES): Entry(1, n, 1, n) for n in range(50_000)})
    index.close()


@pytest.mark.parametrize("kind", ["file", "link", "nothing"])
def test_whatever_is_in_its_place_goes(tmp_path: Path, kind: str) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "x").write_text("x")
    place = tmp_path / "index"
    if kind == "file":
        place.write_text("x")
    elif kind == "link":
        place.symlink_to(tmp_path / "target")
    index_files.remove(str(place))
    assert not os.path.lexists(place)
    assert (tmp_path / "target" / "x").exists()
