"""The ledger itself: its files after kills and crashes, and how much it holds up others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from server.core.tiers.parts import Share
from server.tiers.disk.troubles import Troubles
from server.tiers.interface import TierError
from server.tiers.ledger import notes as all_notes
from server.tiers.ledger.book import Book
from server.tiers.ledger.ledger import Ledger
from server.tiers.ledger.pages import LedgerError
from server.tiers.ledger.rows import Wanted
from tests.server.tiers.ledger.rig import STORE, VALUE, A, F, ledger, name
from tests.wire.process import wait_until


def wanted(*numbers: int, salt: bytes = A) -> list[Wanted]:
    return [Wanted(b"".join(name(n)[:2]) + bytes(4), VALUE, salt) for n in numbers]


def written(made: Ledger, *numbers: int) -> None:
    some = wanted(*numbers)
    taken = made.enter(some)
    made.notes.land([some[at].name for at in taken.entered], True)


def copied(folder: Path, target: Path) -> Path:
    """What a machine finds that lost its power now; nothing of it is open elsewhere."""
    shutil.copytree(folder, target)
    return target


def test_a_kill_at_any_moment_keeps_what_was_entered(tmp_path: Path) -> None:
    made = ledger(tmp_path / "a")
    written(made, 1, 2)
    made._step()
    written(made, 3)
    made.removed([wanted(1)[0].name], made.notes.tick())
    written(made, 4)
    found = ledger(copied(tmp_path / "a", tmp_path / "b"))
    assert found.of_salt(A, 9) == [one.name for one in wanted(2, 3, 4)]
    assert found.open_names() == [one.name for one in wanted(4)], "nobody took its end over yet"
    assert found.notes.clock >= 3
    for one in (made, found):
        one.close()


def test_a_crash_of_the_machine_loses_what_came_after_the_last_commit(tmp_path: Path) -> None:
    made = ledger(tmp_path / "a")
    written(made, 1, 2)
    made._step()
    written(made, 3, 4)
    crashed = copied(tmp_path / "a", tmp_path / "b")
    made.close()
    log = crashed / "log"
    log.write_bytes(log.read_bytes()[:150])  # one record and a torn one
    found = ledger(crashed)
    assert found.of_salt(A, 9) == [one.name for one in wanted(1, 2, 3)]
    found.close()
    log.write_bytes(b"\0" * 500)
    found = ledger(crashed)
    assert found.of_salt(A, 9) == [one.name for one in wanted(1, 2, 3)]
    found.close()


def test_a_ledger_that_is_not_whole_is_refused_and_what_to_do_is_said(tmp_path: Path) -> None:
    ledger(tmp_path / "a").close()
    (tmp_path / "a" / "book" / "data.mdb").write_bytes(b"\xff" * 8192)
    with pytest.raises(TierError, match="move the folder away"):
        ledger(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    ledger(tmp_path / "a").close()


def test_a_thread_commits_what_was_written(tmp_path: Path) -> None:
    made = ledger(tmp_path / "a")
    written(made, 30)
    assert (tmp_path / "a" / "log").stat().st_size
    assert wait_until(lambda: not (tmp_path / "a" / "log").stat().st_size, 20.0, 0.05)
    made.close()


def test_who_reads_waits_for_no_file(tmp_path: Path) -> None:
    made = ledger(tmp_path / "a")
    written(made, 1)
    with made._lock:  # as while a commit waits for the disk
        made.notes.used([wanted(1)[0].name])
        made.notes.gone([wanted(2)[0].name], made.notes.tick())
        made.set_limits([Share(True, A, 0, VALUE)])
    assert made.shares() == (((F, VALUE),), ((A, VALUE),))
    made.close()


def test_sums_are_those_told_last_while_a_disk_stands_still(tmp_path: Path) -> None:
    made = ledger(tmp_path / "a")
    written(made, 1)
    assert made.shares()[0] == ((F, VALUE),)
    written(made, 2)
    with made._lock:
        assert made.shares(is_waiting=False)[0] == ((F, VALUE),)
    assert made.shares()[0] == ((F, 2 * VALUE),)
    made.close()


def test_a_write_that_ends_while_a_removal_is_entered_counts_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ledger(tmp_path / "a")
    (one,) = wanted(1)
    made.enter([one])
    asked = made.notes.tick()
    settled = made._settled

    def then_it_ends() -> Book:
        book = settled()
        if made.notes.is_flying(one.name):
            made.notes.land([one.name], True)
        return book

    monkeypatch.setattr(made, "_settled", then_it_ends)
    made.removed([one.name], asked)
    assert made.has(one.name)
    made.enter([one])
    made.answered(one.name, False, made.notes.tick() - 1)
    assert made.has(one.name)
    made.close()


def test_more_in_doubt_than_can_be_noted_is_asked_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_notes, "MAX_NOTED", 2)
    made = ledger(tmp_path / "a")
    some = wanted(1, 2, 3)
    made.enter(some)
    made.notes.land([one.name for one in some], False)
    found: set[bytes] = set()
    for at_s in range(0, 60, 10):
        made.revive()
        for packed in made.notes.settled(float(at_s), 5.0, 9):
            found.add(packed)
            made.answered(packed, False, made.notes.tick())
    assert found == {one.name for one in some}
    assert made.open_names() == []
    made.close()


def test_after_its_end_it_says_so_and_gives_its_folder_back(tmp_path: Path) -> None:
    made = ledger(tmp_path / "a")
    made.close()
    made.close()
    with pytest.raises(LedgerError, match="cannot be written"):
        made.enter(wanted(1))
    assert not made.is_open
    again = Ledger(str(tmp_path / "a"), STORE, Troubles("x"))
    assert again.is_open
    again.close()
