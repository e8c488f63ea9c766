"""The keeper of a shared folder: what it counts, what it removes, what it never touches."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.core.tiers.parts import Status
from server.tiers.disk import queues
from server.tiers.disk.holdings import Room
from server.tiers.disk.keeper import Keeper
from server.tiers.disk.plan import MIB
from server.tiers.disk.troubles import Troubles
from server.tiers.disk.walker import CLEARED
from tests.server.tiers.disk.rig import FaultyFiles, disk_use
from tests.wire.process import wait_until

SIZE = 16 * MIB
FOLDER = "ab" * 16
Make = Callable[..., Keeper]


def value(folder: Path, number: int, size: int = MIB, used_s: int = 0) -> Path:
    key = bytes([number]).hex() + "00" * 15
    path = folder / FOLDER / key[:2] / f"{key}-0"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (used_s or number,) * 2)
    return path


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Keeper] = []

    def one(files: FaultyFiles | None = None, rescan_s: float = 60.0) -> Keeper:
        troubles = Troubles("disk")
        made.append(Keeper(files or FaultyFiles(), str(tmp_path), SIZE, troubles, rescan_s))
        return made[-1]

    yield one
    for keeper in made:
        keeper.stop()


def test_what_is_there_is_counted_before_anything_is_written(tmp_path: Path, make: Make) -> None:
    for number in range(5):
        value(tmp_path, number)
    files = FaultyFiles()
    files.fail("names", errno.EIO)
    keeper = make(files, rescan_s=0.05)
    assert not keeper.wait_known(0.2)
    assert keeper.reserve(1) is Status.NO_ROOM
    files.heal()
    assert keeper.wait_known(10.0)
    # The folder itself is not counted, and there is room kept for it.
    assert abs(keeper.used_bytes - disk_use(tmp_path)) <= 8192
    assert keeper.used_bytes > 0
    assert isinstance(keeper.reserve(MIB), Room)


def test_the_oldest_make_room(tmp_path: Path, make: Make) -> None:
    paths = [value(tmp_path, number, used_s=100 + (number * 7) % 15) for number in range(15)]
    by_age = sorted(paths, key=lambda path: path.stat().st_mtime)
    keeper = make()
    assert keeper.wait_known(10.0)
    assert isinstance(keeper.reserve(4 * MIB), Room)
    left = [path for path in by_age if path.exists()]
    assert left == by_age[-len(left) :]
    assert len(left) == 11


def test_what_was_used_meanwhile_is_passed_over(tmp_path: Path, make: Make) -> None:
    paths = [value(tmp_path, number) for number in range(1, 15)]
    keeper = make()
    assert keeper.wait_known(10.0)
    os.utime(paths[0], (10_000, 10_000))
    paths[1].unlink()
    assert isinstance(keeper.reserve(4 * MIB), Room)
    assert paths[0].exists()
    assert not paths[2].exists()


def test_a_walk_removes_what_is_too_much(tmp_path: Path, make: Make) -> None:
    for number in range(1, 21):
        value(tmp_path, number)
    keeper = make()
    assert keeper.wait_known(10.0)
    assert disk_use(tmp_path) <= SIZE
    assert keeper.used_bytes <= SIZE


def test_room_given_back_is_room(make: Make) -> None:
    keeper = make()
    assert keeper.wait_known(10.0)
    room = keeper.reserve(15 * MIB)
    assert isinstance(room, Room)
    assert keeper.reserve(15 * MIB) is Status.NO_ROOM
    keeper.release(room)
    assert isinstance(keeper.reserve(15 * MIB), Room)
    keeper.charge(MIB)
    assert keeper.reserve(MIB) is Status.NO_ROOM


def test_files_that_cannot_be_removed_end_nothing(tmp_path: Path, make: Make) -> None:
    for number in range(1, 16):
        value(tmp_path, number)
    files = FaultyFiles()
    files.fail("remove", errno.EACCES)
    keeper = make(files)
    assert keeper.wait_known(10.0)
    assert keeper.reserve(8 * MIB) is Status.NO_ROOM


def test_cleared_folders_go(tmp_path: Path, make: Make) -> None:
    value(tmp_path, 1)
    os.rename(tmp_path / FOLDER, tmp_path / f"{CLEARED}x")
    keeper = make(rescan_s=0.05)
    assert wait_until(lambda: not (tmp_path / f"{CLEARED}x").exists(), 10.0)
    assert wait_until(lambda: keeper.used_bytes == 0, 10.0)


def test_few_candidates_are_enough(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MAX_CANDIDATES", 3)
    paths = [value(tmp_path, number) for number in range(1, 15)]
    keeper = make(rescan_s=0.05)
    assert keeper.wait_known(10.0)
    keeper.used(str(paths[13]), 14, paths[13].stat())
    assert wait_until(lambda: isinstance(keeper.reserve(10 * MIB), Room), 10.0)
    assert paths[13].exists()


def test_the_folder_is_walked_before_few_candidates_are_gone(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MAX_CANDIDATES", 4)
    for number in range(12):
        value(tmp_path, number)
    files = FaultyFiles()
    keeper = make(files)
    assert keeper.wait_known(60.0)
    assert wait_until(lambda: time.monotonic() > keeper._again_s)
    walked = files.calls["names"]
    assert isinstance(keeper.reserve(5 * MIB), Room), "two go, and two are left"
    assert wait_until(lambda: files.calls["names"] > walked)
