"""The tail: a kill loses nothing of it, and nothing that is torn is read."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from server.tiers.disk import tail as tails
from server.tiers.disk.entries import Entry
from server.tiers.disk.files import Files
from server.tiers.disk.plan import MIB, NAME_BYTES
from server.tiers.disk.tail import RECORD_BYTES, Tail
from server.tiers.disk.troubles import Troubles
from tests.server.tiers.disk.rig import FaultyFiles

Open = Callable[..., Tail]


def name(number: int) -> bytes:
    return number.to_bytes(NAME_BYTES, "big")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    made: list[Tail] = []

    def one(most: int = MIB, files: Files | None = None) -> Tail:
        made.append(Tail(files or Files(), str(tmp_path), most, Troubles("disk")))
        return made[-1]

    yield one
    for tail in made:
        tail.close()


def started(tail: Tail) -> Tail:
    tail.read()
    tail.turn()
    return tail


def test_what_was_noted_is_read_by_the_next(opened: Open) -> None:
    tail = started(opened())
    tail.note(name(1), Entry(1, 2, 3, 1 << 60))
    tail.note(name(2), Entry(4, 5, 6, 7))
    tail.note(name(1), None)
    assert opened().read() == {name(1): None, name(2): Entry(4, 5, 6, 7)}


def test_salts_are_kept_and_a_file_of_the_former_format_has_none(
    opened: Open, tmp_path: Path
) -> None:
    tail = started(opened())
    salted = Entry(1, 2, 3, 4, b"s" * 16)
    tail.note(name(1), salted)
    assert opened().read() == {name(1): salted}
    former = Struct(f"<{NAME_BYTES}sIIIQ?7x").pack(name(2), 5, 6, 7, 8, True)
    hashed = Struct("<I").pack(xxhash.xxh32_intdigest(former))
    (tmp_path / "tail-0").write_bytes(Struct("<8sQ").pack(b"kvkdtail", 9) + former + hashed)
    assert opened().read() == {name(1): salted, name(2): Entry(5, 6, 7, 8)}


def test_both_files_are_read_the_older_first(opened: Open) -> None:
    tail = started(opened())
    for turn in range(5):
        tail.note(name(1), Entry(turn, 0, 0, 0))
        tail.note(name(10 + turn), Entry(turn, 0, 0, 0))
        assert opened().read()[name(1)] == Entry(turn, 0, 0, 0)
        tail.turn()
        assert opened().read()[name(1)] == Entry(turn, 0, 0, 0), "not in the index yet"
    tail.settle()
    assert opened().read() == {}
    tail.note(name(1), None)
    assert opened().read() == {name(1): None}


def test_turns_go_on_over_restarts(opened: Open) -> None:
    for run in range(3):
        tail = started(opened())
        tail.note(name(run), Entry(run, 0, 0, 0))
        assert opened().read()[name(run)] == Entry(run, 0, 0, 0)


@given(st.integers(0, 4 * RECORD_BYTES + 20), st.integers(1, 255))
def test_nothing_wrong_is_read_of_what_is_torn(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: int
) -> None:
    folder = tmp_path_factory.mktemp("tail")
    tail = started(Tail(Files(), str(folder), MIB, Troubles("disk")))
    whole = {name(number): Entry(number, 1, 2, 3) for number in range(4)}
    for one, entry in whole.items():
        tail.note(one, entry)
    (path,) = [folder / one for one in tails.NAMES if (folder / one).stat().st_size]
    data = bytearray(path.read_bytes())
    if at < len(data):
        data[at] ^= change
    path.write_bytes(data)
    tail.close()
    tail = Tail(Files(), str(folder), MIB, Troubles("disk"))
    assert tail.read().items() <= whole.items()
    path.write_bytes(data[:at])
    assert tail.read().items() <= whole.items()
    tail.close()


def test_it_takes_no_more_than_it_may(opened: Open, tmp_path: Path) -> None:
    most = 10 * RECORD_BYTES
    tail = started(opened(most))
    fits = [tail.note(name(number), None) for number in range(100)]
    assert (fits[0], fits[-1]) == (True, False)
    assert 0 < (tmp_path / tails.NAMES[1]).stat().st_size <= most // 2
    tail.turn()
    assert tail.note(name(200), None)
    assert name(200) in opened(most).read()


def test_a_full_disk_is_told_and_ends_nothing(opened: Open) -> None:
    class Full(FaultyFiles):
        def pwritev(self, fd: int, buffers: object, offset: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    tail = started(opened(MIB, Full()))
    tail.note(name(1), None)
    assert opened().read() == {}
