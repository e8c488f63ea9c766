"""Where a slot comes from, and that the folder's size is never passed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from server.core.tiers.parts import Share, Status
from server.tiers.disk.catalog import Catalog, Place
from server.tiers.disk.plan import MIB, NAME_BYTES, divide
from server.tiers.disk.shares import NOBODY, Whose
from server.tiers.disk.space import FULL_S, VAIN_S, Space
from server.tiers.disk.troubles import Troubles
from tests.server.tiers.disk.rig import FaultyFiles, disk_use

SIZE = 16 * MIB
SLOT = 65_536
A = Whose(bytes(16), b"a" * 16)


class Rig:
    def __init__(self, folder: Path, size: int = SIZE) -> None:
        self.now_s = 1000.0
        self.folder = folder
        self.files = FaultyFiles()
        self.plan = divide(size)
        self.troubles = Troubles("disk")
        self.catalog = Catalog(1, 1 << 20, lambda name, entry: None)
        self.space = Space(
            self.files, str(folder), self.plan, self.catalog, self.troubles, lambda: self.now_s
        )
        self.number = 0

    def store(self, slot_bytes: int = SLOT, taker: Whose = NOBODY) -> Status:
        place = self.space.take(slot_bytes, taker)
        if isinstance(place, Status):
            return place
        self.number += 1
        self.catalog.publish(self.number.to_bytes(NAME_BYTES, "big"), place, 0)
        return Status.OK

    def lengths(self) -> list[int]:
        return sorted(segment.slot_bytes for segment in self.catalog.segments.values())


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_segments_are_made_as_they_are_needed_up_to_the_size(rig: Rig, tmp_path: Path) -> None:
    rig.store()
    assert len(rig.lengths()) == 1
    while not rig.troubles.of("evicted"):
        assert rig.store() is Status.OK
        assert disk_use(tmp_path) <= rig.plan.data_bytes + 64 * 1024
    assert rig.catalog.used_bytes > rig.plan.data_bytes - SLOT
    rig.space.close()


def test_a_slot_that_is_longer_than_a_segment_makes_one_of_its_own(rig: Rig) -> None:
    assert rig.store(5 * MIB) is Status.OK
    assert rig.store(5 * MIB) is Status.OK
    assert rig.lengths() == [5 * MIB] * 2
    assert rig.store(5 * MIB) is Status.OK
    assert rig.catalog.count == 2 + (rig.plan.data_bytes >= 15 * MIB)
    assert rig.store(SIZE) is Status.NO_ROOM
    rig.space.close()


def test_lengths_share_by_age(rig: Rig) -> None:
    while not rig.troubles.of("evicted"):
        rig.store()
    for _ in range(2000):
        assert rig.store(2 * SLOT) is Status.OK
    assert set(rig.lengths()) == {2 * SLOT}, "nobody used the others meanwhile"
    for _ in range(3000):
        assert rig.store() is Status.OK
        assert rig.store(2 * SLOT) is Status.OK
    lengths = rig.lengths()
    assert min(lengths.count(SLOT), lengths.count(2 * SLOT)) >= 2, "both are in use"
    rig.space.close()


def test_a_slot_that_is_in_use_is_waited_for_by_nobody(rig: Rig) -> None:
    places = []
    while True:
        place = rig.space.take(SLOT, NOBODY)
        if isinstance(place, Status):
            break
        places.append(place)
    assert place is Status.NO_ROOM
    assert rig.space.take(2 * SLOT, NOBODY) is Status.NO_ROOM
    rig.catalog.give_back(places[0])
    assert isinstance(rig.space.take(SLOT, NOBODY), Place)
    rig.space.close()


def test_a_full_file_system_is_asked_again_after_a_while(rig: Rig) -> None:
    rig.files.fail("allocate", errno.ENOSPC, times=1)
    short = [rig.space.is_short]
    assert rig.store() is Status.NO_ROOM
    assert rig.store() is Status.NO_ROOM
    rig.now_s += FULL_S
    short.append(rig.space.is_short)  # until there is room again
    assert rig.store() is Status.OK
    assert [*short, rig.space.is_short] == [False, True, False]
    assert rig.troubles.of("disk full") == 1
    rig.space.close()


@pytest.mark.parametrize(
    ("share", "slot_bytes", "taker"),
    [
        (Share(True, A.salt, SIZE, 0), SLOT, NOBODY),
        (Share(True, A.salt, SIZE, 0), 2 * SLOT, NOBODY),
        (Share(True, A.salt, 0, 1), SLOT, A),
    ],
)
def test_where_quotas_let_nothing_go_not_every_put_looks_at_all_slots(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, share: Share, slot_bytes: int, taker: Whose
) -> None:
    while not rig.troubles.of("evicted"):
        assert rig.store(taker=A if share.floor_bytes else NOBODY) is Status.OK
    rig.catalog.set_quotas([share])
    looks: list[str] = []

    def counted(name: str) -> None:
        inner = getattr(rig.catalog, name)

        def look(*args: object) -> object:
            looks.append(name)
            return inner(*args)

        monkeypatch.setattr(rig.catalog, name, look)

    for name in ("choose", "evict_own", "coldest"):
        counted(name)
    assert rig.store(slot_bytes, taker) is Status.OVER
    once = len(looks)
    assert [rig.store(slot_bytes, taker) for _ in range(20)] == [Status.OVER] * 20
    assert len(looks) == once > 0
    rig.now_s += VAIN_S
    assert rig.store(slot_bytes, taker) is Status.OVER
    assert len(looks) == 2 * once
    rig.catalog.set_quotas([])
    assert rig.store(slot_bytes, taker) is Status.OK
    rig.space.close()


def test_a_full_file_system_is_no_quota(rig: Rig) -> None:
    rig.catalog.set_quotas([Share(True, A.salt, SLOT, 0)])
    rig.files.fail("allocate", errno.ENOSPC)
    assert rig.store() is Status.NO_ROOM, "or what is to be written would be given up"
    rig.space.close()


def test_a_segment_is_shorter_where_the_file_system_has_less_room(rig: Rig) -> None:
    rig.files.small = (16 * MIB, 8 * SLOT)
    assert rig.store() is Status.OK
    assert [segment.count for segment in rig.catalog.segments.values()] == [6]
    rig.files.small = (16 * MIB, 0)
    rig.files.fail("allocate", errno.ENOSPC)
    for _ in range(5):
        assert rig.store() is Status.OK
    assert rig.store() is Status.OK, "another value's"
    assert rig.troubles.of("disk full") == 1
    rig.space.close()


def test_a_folder_in_trouble_is_an_error(rig: Rig) -> None:
    rig.files.fail("open", errno.EROFS)
    assert rig.store() is Status.ERROR
    rig.files.heal()
    assert rig.store() is Status.OK
    rig.space.close()


def test_segments_of_an_earlier_run(tmp_path: Path) -> None:
    first = Rig(tmp_path)
    for _ in range(60):
        first.store()
    first.space.close()
    (tmp_path / "notes").write_text("x")
    second = Rig(tmp_path)
    found = second.space.reopen()
    assert set(found) == set(first.catalog.segments)
    for number, segment in found.items():
        old = first.catalog.segments[number]
        segment.states[:], segment.stamps[:], segment.used = old.states, old.stamps, old.used
    assert second.space.admit(found) == []
    assert second.store() is Status.OK
    assert len(second.catalog.segments) == len({*second.lengths()}) * len(second.lengths())
    second.space.close()


def test_a_smaller_size_keeps_what_was_used_last(tmp_path: Path) -> None:
    first = Rig(tmp_path, 64 * MIB)
    while not first.troubles.of("evicted"):
        first.store()
    first.space.close()
    second = Rig(tmp_path, 32 * MIB)
    found = second.space.reopen()
    for number, segment in found.items():
        old = first.catalog.segments[number]
        segment.states[:], segment.stamps[:], segment.used = old.states, old.stamps, old.used
    removed = second.space.admit(found)
    kept = second.catalog.segments.values()
    assert min(int(s.stamps.max()) for s in kept) > max(int(s.stamps.max()) for s in removed)
    assert disk_use(tmp_path) <= 32 * MIB
    second.space.close()


def test_empty_segments_of_an_earlier_run_give_their_room_back(tmp_path: Path) -> None:
    first = Rig(tmp_path)
    first.store()
    first.space.close()
    second = Rig(tmp_path)
    assert len(second.space.admit(second.space.reopen())) == 1
    assert list(tmp_path.iterdir()) == []
