"""Quotas in a folder that servers share: floors and limits hold, whoever stores."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from server.core.tiers.parts import Share, Status
from server.tiers.disk import keeper as keepers
from server.tiers.disk.files import Files
from server.tiers.disk.walker import UNFINISHED
from tests.server.tiers.disk.rig import (
    FINGERPRINT,
    MIB,
    OTHER,
    FaultyFiles,
    disk_use,
    get,
    held,
)
from tests.server.tiers.disk.tenants import (
    BIG,
    BIG_LENGTH,
    BOTH,
    FIRST_OF_B,
    FULL,
    LENGTH,
    SIZE,
    A,
    B,
    C,
    Open,
    Unsynced,
    agreed,
    put,
    told,
)
from tests.wire.process import wait_until


@pytest.mark.parametrize("floor", [0, 10])
def test_a_flood_of_ten_folders_leaves_a_tenant_its_floor(opened: Open, floor: int) -> None:
    tier = opened(Unsynced())
    tier.set_quotas([Share(True, A, floor * BIG_LENGTH, 0)] if floor else [])
    assert put(tier, A, range(10), BIG) == {Status.OK: 10}
    flood = 10 * SIZE // BIG_LENGTH
    assert put(tier, B, range(FIRST_OF_B, FIRST_OF_B + flood), BIG) == {Status.OK: flood}
    assert len(held(tier, range(10), BIG)) == floor


def test_a_floor_holds_against_other_servers_that_are_told_it(opened: Open, folder: Path) -> None:
    quotas = [Share(True, A, 10 * BIG_LENGTH, 0), Share(False, OTHER, 0, 5 * BIG_LENGTH)]
    mine = opened(Unsynced())
    mine.set_quotas(quotas)
    assert put(mine, A, range(10), BIG) == {Status.OK: 10}
    others = [opened(Unsynced(), rescan_s=0.1) for _ in range(2)]
    for other in others:
        other.set_quotas(quotas)
    for begin in range(FIRST_OF_B, FIRST_OF_B + 3 * FULL, 20):
        for at, other in enumerate(others):
            first = begin + at * 10_000
            assert put(other, B, range(first, first + 20), BIG)[Status.ERROR] == 0
            put(other, b"", range(first, first + 2), BIG, OTHER)
    assert held(mine, range(10), BIG) == list(range(10))
    assert wait_until(lambda: disk_use(folder) <= SIZE)
    for other in others:
        assert wait_until(lambda other=other: agreed(other, folder, A))
        assert told(other)[OTHER] <= 5 * BIG_LENGTH


class Removing(Unsynced):
    """Each removal of a value takes until so many are under way, or a while."""

    def __init__(self) -> None:
        self.together = threading.Barrier(4)

    def remove(self, path: str) -> None:
        if UNFINISHED not in path:
            try:
                self.together.wait(0.5)
            except threading.BrokenBarrierError:
                pass
        super().remove(path)


def test_a_floor_holds_against_threads_that_choose_at_once(opened: Open) -> None:
    filling = opened(Unsynced())
    filling.set_quotas([Share(True, A, 10 * BIG_LENGTH, 0)])
    put(filling, A, range(11), BIG)
    put(filling, B, range(FIRST_OF_B, FIRST_OF_B + FULL - 8), BIG)
    assert told(filling)[A] == 11 * BIG_LENGTH, "one of them may go"
    tier = opened(Removing())
    tier.set_quotas([Share(True, A, 10 * BIG_LENGTH, 0)])
    assert tier._keeper.wait_known(60.0)
    firsts = range(2000, 2120, 10)
    writers = [
        threading.Thread(target=put, args=(tier, C, range(one, one + 1), BIG)) for one in firsts
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert told(tier)[A] == 10 * BIG_LENGTH
    assert len(tier.of_salt(A, 100)) == 10


def test_a_namespaces_floor_holds_against_another(opened: Open) -> None:
    tier = opened(Unsynced())
    tier.set_quotas([Share(False, FINGERPRINT, 20 * BIG_LENGTH, 0)])
    assert put(tier, b"", range(20), BIG) == {Status.OK: 20}
    assert put(tier, b"", range(300, 450), BIG, OTHER) == {Status.OK: 150}
    assert held(tier, range(20), BIG) == list(range(20))


def test_who_finds_no_room_for_others_floors_is_told_so(opened: Open) -> None:
    tier = opened(Unsynced())
    tier.set_quotas([Share(True, A, SIZE, 0)])
    put(tier, A, range(100), BIG)
    full = len(tier.of_salt(A, 1000))
    assert full > FULL
    assert put(tier, B, range(FIRST_OF_B, FIRST_OF_B + 5), BIG) == {Status.OVER: 5}
    assert put(tier, A, range(500, 505), BIG) == {Status.OK: 5}, "its own make room"
    assert abs(len(tier.of_salt(A, 1000)) - full) <= 1
    tier.set_quotas([])
    assert put(tier, B, range(FIRST_OF_B, FIRST_OF_B + 5), BIG) == {Status.OK: 5}


def test_who_has_less_than_its_floor_takes_from_those_above_theirs(opened: Open) -> None:
    tier = opened(Unsynced())
    tier.set_quotas([Share(True, A, 10 * BIG_LENGTH, 0), Share(True, B, 20 * BIG_LENGTH, 0)])
    put(tier, A, range(5), BIG)
    put(tier, B, range(FIRST_OF_B, FIRST_OF_B + 2 * FULL), BIG)
    assert put(tier, A, range(5, 10), BIG) == {Status.OK: 5}
    assert held(tier, range(10), BIG) == list(range(10)), "and not of its own, which are older"
    assert put(tier, b"", range(200, 200 + FULL), BIG) == {Status.OK: FULL}
    assert told(tier)[A] == 10 * BIG_LENGTH
    assert told(tier)[B] == 20 * BIG_LENGTH


def test_a_limit_is_never_passed_and_the_oldest_of_its_own_go(opened: Open, folder: Path) -> None:
    tier = opened(rescan_s=0.05)
    tier.set_quotas([Share(True, A, 0, 20 * LENGTH), Share(True, B, 1, 0)])
    put(tier, B, range(FIRST_OF_B, FIRST_OF_B + 50))
    for number in range(100):
        assert put(tier, A, range(number, number + 1)) == {Status.OK: 1}
        assert told(tier).get(A, 0) <= 20 * LENGTH
    assert agreed(tier, folder, A, B)
    assert told(tier) == {A: 20 * LENGTH, B: 50 * LENGTH, FINGERPRINT: 70 * LENGTH}
    assert held(tier, range(100)) == list(range(80, 100))
    assert put(tier, A, range(200, 201), room=1 * MIB) == {Status.OVER: 1}


def test_a_limit_that_is_lowered_holds_after_trim(
    opened: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "TRIMMED", 30)
    tier = opened()
    put(tier, b"", range(200, 250), fingerprint=OTHER)
    put(tier, A, range(100))
    tier.set_quotas([Share(False, OTHER, 0, 7 * LENGTH), Share(False, FINGERPRINT, 0, 10 * LENGTH)])
    turns = 1
    while tier.trim():
        turns += 1
    assert turns == (43 + 90) // 30 + 1
    assert told(tier) == {FINGERPRINT: 10 * LENGTH, OTHER: 7 * LENGTH}
    assert held(tier, range(100)) == list(range(90, 100)), "what was used last is left"
    tier.set_quotas([Share(True, A, 0, 3 * LENGTH)])
    assert wait_until(lambda: not tier.trim() and told(tier).get(A) == 3 * LENGTH)
    assert agreed(tier, folder, A)


def test_quotas_for_a_salt_that_has_values_hold_once_they_are_counted(
    opened: Open, folder: Path
) -> None:
    put(opened(), A, range(30))
    files = FaultyFiles()
    tier = opened(files=files)
    files.fail("names")
    tier.set_quotas(BOTH)
    assert put(tier, A, range(50, 51)) == {Status.NO_ROOM: 1}, "nobody knows how much it has"
    assert get(tier, 1) is Status.OK
    files.heal()
    tier.set_quotas([*BOTH, Share(True, C, 1, 0)])
    assert wait_until(lambda: put(tier, A, range(50, 51)) == {Status.OK: 1})
    assert told(tier) == {A: 31 * LENGTH, FINGERPRINT: 31 * LENGTH}
    tier.set_quotas(BOTH)
    assert agreed(tier, folder, A, B)


class Halting(Files):
    """Lets a walk list so many folders, and stops it there until it may go on."""

    def __init__(self) -> None:
        self.left = 1 << 30
        self.is_there, self.may_go_on = threading.Event(), threading.Event()

    def names(self, path: str) -> list[str]:
        self.left -= 1
        if not self.left:
            self.is_there.set()
            assert self.may_go_on.wait(60.0)
        return super().names(path)


def test_a_walk_that_began_before_a_salt_had_a_quota_tells_nothing_of_it(opened: Open) -> None:
    put(opened(), A, range(4))
    files = Halting()
    tier = opened(files)
    files.left = 5  # for what was cleared, the root, the namespace, two folders of values
    tier._keeper.look_again()
    assert files.is_there.wait(60.0)
    tier.set_quotas(BOTH)
    assert put(tier, A, range(9, 10)) == {Status.NO_ROOM: 1}
    files.may_go_on.set()
    assert tier._keeper.wait_known(60.0)
    assert told(tier) == {A: 4 * LENGTH, FINGERPRINT: 4 * LENGTH}


class HaltingRemoval(Unsynced):
    """A removal waits, and so does what is listed after it."""

    def __init__(self) -> None:
        self.is_armed = False
        self.removes, self.lists, self.may_remove, self.may_list = (
            threading.Event() for _ in range(4)
        )

    def remove(self, path: str) -> None:
        if self.is_armed and UNFINISHED not in path and not self.removes.is_set():
            self.removes.set()
            assert self.may_remove.wait(60.0)
        super().remove(path)

    def names(self, path: str) -> list[str]:
        if self.is_armed and self.removes.is_set():
            self.lists.set()
            assert self.may_list.wait(60.0)
        return super().names(path)


def test_a_walk_that_was_just_over_allows_no_writing_for_a_salt_it_did_not_read(
    opened: Open,
) -> None:
    files = HaltingRemoval()
    tier = opened(files)
    put(tier, A, range(8))
    files.is_armed = True
    limit = Share(False, FINGERPRINT, 0, 7 * LENGTH)
    tier.set_quotas([limit])
    assert files.removes.wait(60.0), "the walk is over and removes what is too much"
    tier.set_quotas([limit, Share(True, A, 0, 4 * LENGTH)])
    files.may_remove.set()
    assert files.lists.wait(60.0)
    assert put(tier, A, range(20, 21)) == {Status.NO_ROOM: 1}
    files.may_list.set()
    assert tier._keeper.wait_known(60.0)
    assert told(tier)[A] == 4 * LENGTH


def test_what_other_servers_removed_is_not_counted_against_a_floor(opened: Open) -> None:
    """Both choose the same that go first: whoever finds one gone knows how much that was."""
    quotas = [Share(True, A, 25 * BIG_LENGTH, 0)]
    here = opened(Unsynced())
    here.set_quotas(quotas)
    assert put(here, A, range(50), BIG) == {Status.OK: 50}
    there = opened(Unsynced())
    there.set_quotas(quotas)
    assert wait_until(lambda: told(there).get(A) == 50 * BIG_LENGTH)
    for begin in range(FIRST_OF_B, FIRST_OF_B + 80, 10):
        put(here, B, range(begin, begin + 10), BIG)
        put(there, C, range(begin + 10_000, begin + 10_010), BIG)
    assert len(held(here, range(50), BIG)) >= 25
