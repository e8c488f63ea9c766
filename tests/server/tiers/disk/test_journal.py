"""The journal: entries follow the bytes they lead to, and a lost index comes back."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from server.tiers.disk import index as index_files
from server.tiers.disk import journal as journals
from server.tiers.disk import segments
from server.tiers.disk.catalog import Catalog
from server.tiers.disk.index import Index, IndexUnusableError
from server.tiers.disk.journal import Journal
from server.tiers.disk.plan import MIB, NAME_BYTES
from server.tiers.disk.shares import NOBODY
from server.tiers.disk.tail import Tail
from server.tiers.disk.troubles import Troubles
from tests.server.tiers.disk.rig import FaultyFiles
from tests.wire.process import wait_until

SLOT = 8192


class Rig:
    """A journal whose thread comes round every hour: tests flush by hand."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, every_s: float = 3600
    ) -> None:
        monkeypatch.setattr(journals, "EVERY_S", every_s)
        self.folder = folder
        self.files = FaultyFiles()
        self.troubles = Troubles("disk")
        self.tail = Tail(self.files, str(folder), MIB, self.troubles)
        self.journal = Journal(self.files, self.new_index, self.tail, self.troubles)
        self.catalog = Catalog(1, 100_000, self.journal.note)
        (folder / "segments").mkdir()
        self.segment = segments.create(self.files, str(folder / "segments"), 1, SLOT, 64)
        self.catalog.add(self.segment)
        self.journal.start(self.catalog, Index(str(folder / "index"), 8 * MIB))

    def new_index(self) -> Index:
        index_files.remove(str(self.folder / "index"))
        return Index(str(self.folder / "index"), 8 * MIB)

    def publish(self, number: int) -> None:
        place = self.catalog.take(SLOT, NOBODY)
        assert place is not None
        self.catalog.publish(name(number), place, 0)

    def in_tail(self) -> set[bytes]:
        """What a start would bring into the index first."""
        tail = Tail(self.files, str(self.folder), MIB, self.troubles)
        found = {one for one, entry in tail.read().items() if entry is not None}
        tail.close()
        return found

    def on_disk(self) -> set[bytes]:
        """What another process would find now."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder / "index", copy)
        index = Index(str(copy), 8 * MIB)
        found = {bytes(one) for names, _ in index.rows() for one in names}
        index.close()
        return found


def name(number: int) -> bytes:
    return number.to_bytes(NAME_BYTES, "big")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(every_s: float = 3600) -> Rig:
        rigs.append(Rig(tmp_path, monkeypatch, every_s))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.journal.stop()


def test_a_segment_is_synced_before_its_entries(made: Callable[..., Rig]) -> None:
    rig = made()
    rig.publish(1)
    assert (rig.on_disk(), rig.in_tail()) == (set(), {name(1)})
    rig.files.fail("sync", errno.EIO)
    rig.journal.flush()
    assert rig.on_disk() == set(), "what may not be on the disk is not entered"
    assert rig.troubles.of("index lost") == 1
    assert not rig.segment.busy


def test_changes_are_written_in_their_order(made: Callable[..., Rig]) -> None:
    rig = made()
    for number in (1, 2, 3):
        rig.publish(number)
    rig.catalog.forget(name(2))
    rig.journal.flush()
    rig.catalog.forget(name(3))
    rig.publish(2)
    assert rig.in_tail() == {name(2)}
    rig.journal.flush()
    assert (rig.on_disk(), rig.in_tail()) == ({name(1), name(2)}, set())
    syncs = rig.files.calls["sync"]
    rig.journal.flush()
    assert rig.files.calls["sync"] == syncs, "nothing to write, nothing synced"


def test_the_thread_writes_by_itself_and_the_end_writes_the_rest(made: Callable[..., Rig]) -> None:
    rig = made(0.02)
    rig.publish(1)
    assert wait_until(lambda: rig.on_disk() == {name(1)}, 10.0)
    rig.publish(2)
    rig.journal.stop()
    rig.journal.stop()
    assert rig.on_disk() == {name(1), name(2)}


def test_a_full_index_is_made_anew_from_what_there_is(
    made: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "AGAIN_S", 0.1)
    rig = made(0.02)
    rig.publish(1)
    failing = threading.Event()
    real = Index.write

    def write(index: Index, changes: object) -> None:
        if failing.is_set():
            raise lmdb.MapFullError("mdb_put")
        real(index, changes)  # type: ignore[arg-type]

    monkeypatch.setattr(Index, "write", write)
    failing.set()
    rig.publish(2)
    assert wait_until(lambda: rig.troubles.of("index lost") > 1, 10.0)
    rig.publish(3)
    rig.catalog.forget(name(1))
    failing.clear()
    assert wait_until(lambda: rig.troubles.of("index renewed") == 1, 10.0)
    rig.publish(4)
    assert wait_until(lambda: rig.on_disk() == {name(2), name(3), name(4)}, 10.0)


def test_more_changes_than_it_holds_are_written_by_beginning_anew(
    made: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MAX_CHANGES", 10)
    monkeypatch.setattr(journals, "AGAIN_S", 0.0)
    rig = made(0.5)
    for number in range(30):
        rig.publish(number)
    assert wait_until(lambda: rig.troubles.of("index renewed") == 1, 10.0)
    assert rig.on_disk() == {name(number) for number in range(30)}


def test_last_uses_are_written_at_the_end(made: Callable[..., Rig]) -> None:
    rig = made()
    rig.publish(1)
    rig.publish(2)
    rig.journal.flush()
    place = rig.catalog.pin(name(1))
    assert place is not None
    rig.catalog.unpin(place)
    rig.journal.stop()
    index = Index(str(rig.folder / "index"), 8 * MIB)
    names, entries = next(iter(index.rows()))
    stamps = {bytes(one): int(entry["stamp"]) for one, entry in zip(names, entries, strict=True)}
    index.close()
    assert stamps[name(1)] > stamps[name(2)]


def test_what_went_while_the_index_was_lost_stays_away(
    made: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = made()
    rig.publish(1)
    rig.journal.flush()
    rig.journal._lose(OSError(errno.EIO, "a bad sector"))
    rig.catalog.forget(name(1))
    rig.journal.settle()
    assert rig.on_disk() == set() == rig.in_tail()


def test_it_says_when_what_went_may_come_back(
    made: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = made()
    rig.publish(1)
    rig.journal.flush()
    rig.journal._lose(OSError(errno.EIO, "a bad sector"))
    rig.catalog.forget(name(1))

    def fail() -> Index:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(rig.journal, "_make_index", fail)
    with pytest.raises(IndexUnusableError):
        rig.journal.settle()
