"""Parties of former servers: who says Drained for whom, and what goes with the last one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from protocol.ids import Epoch, Token
from server.core.adoption import PartyId
from server.shell import parties
from server.shell.awaited import Awaited, AwaitedParty
from server.shell.parties import Party

OLD, OLDER = Epoch(b"o" * 16), Epoch(b"r" * 16)
TOKEN = Token(b"t" * 16)
PARTY = Party(
    role="engine",
    pid=4711,
    start_ticks=100,
    boot="boot",
    space="space",
    epoch=OLD.hex(),
    token=parties.digest(TOKEN),
    namespaces=("1" * 32,),
)


def entry(tmp_path: Path, number: int, said: Party | None, watched: bool = True) -> AwaitedParty:
    path = tmp_path / f"{number:032x}"
    path.write_text("x")
    pidfd = os.pidfd_open(os.getpid()) if watched else None
    return AwaitedParty(PartyId(number), str(path), said, pidfd)


def test_a_process_drains_its_own_of_that_incarnation_only(tmp_path: Path) -> None:
    replace = msgspec.structs.replace
    entries = [
        entry(tmp_path, 1, PARTY),
        entry(tmp_path, 2, replace(PARTY, token="")),  # an earlier connection of the same process
        entry(tmp_path, 3, replace(PARTY, epoch=OLDER.hex(), token="")),
        entry(tmp_path, 4, replace(PARTY, pid=4712, token="")),
        entry(tmp_path, 5, replace(PARTY, start_ticks=101, token="")),
        entry(tmp_path, 6, replace(PARTY, role="copier", token="")),
        entry(tmp_path, 7, None),
        entry(tmp_path, 8, replace(PARTY, token=""), watched=False),  # another number space
    ]
    awaited = Awaited(entries)

    def drained(epoch: Epoch, token: bytes, pid: int, ticks: int) -> list[int]:
        return [one.party for one in awaited.drained(epoch, Token(token), pid, ticks)]

    assert drained(OLD, b"", 4711, 100) == [1, 2]
    assert drained(OLDER, b"", 4711, 100) == [3]
    assert drained(OLD, b"", 4712, 100) == [4]
    assert drained(OLD, b"", 1, 100) == []
    assert drained(Epoch(b"x" * 16), TOKEN, 4711, 100) == []
    assert drained(OLD, TOKEN, 0, 0) == [1]  # from another container, by what it was given
    assert drained(OLD, b"u" * 16, 0, 0) == []
    awaited.close()


def test_one_whose_number_is_not_known_drains_nobody_elses(tmp_path: Path) -> None:
    unseen = msgspec.structs.replace(PARTY, pid=0, start_ticks=0, token=parties.digest(TOKEN))
    awaited = Awaited([entry(tmp_path, 1, unseen, watched=False)])
    assert awaited.drained(OLD, Token(b""), 0, 0) == []
    assert awaited.drained(OLD, Token(b"u" * 16), 0, 0) == []
    assert [one.party for one in awaited.drained(OLD, TOKEN, 0, 0)] == [1]


@pytest.mark.parametrize("watched", [True, False])
def test_who_is_gone_is_forgotten_with_its_file(tmp_path: Path, watched: bool) -> None:
    first, second = entry(tmp_path, 1, PARTY, watched), entry(tmp_path, 2, PARTY, watched)
    awaited = Awaited([first, second])
    assert len(awaited.watched) == (2 if watched else 0)
    awaited.gone(first)
    assert len(awaited) == 1
    assert first.pidfd is None
    assert [path.name for path in tmp_path.iterdir()] == [f"{2:032x}"]
    awaited.close()
    assert second.pidfd is None
    assert [path.name for path in tmp_path.iterdir()] == [f"{2:032x}"]  # for the next server
    assert (first.role, AwaitedParty(PartyId(3), "", None).role) == ("engine", "unknown")
