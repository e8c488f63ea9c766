"""One file for each value: several servers share a folder, and nobody holds a lock."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from server.core.tiers.parts import Status
from server.tiers.disk.shared import SharedTier
from server.tiers.interface import TierError
from tests.server.tiers.disk.rig import (
    FINGERPRINT,
    MIB,
    OTHER,
    ROOM,
    FaultyFiles,
    disk_use,
    empty,
    filled,
    flip,
    get,
    held,
    name_of,
    put,
)
from tests.wire.process import wait_until

SIZE = 16 * MIB
BIG = 65_536
Open = Callable[..., SharedTier]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    tiers: list[SharedTier] = []

    def make(
        size: int = SIZE, files: FaultyFiles | None = None, rescan_s: float = 60.0
    ) -> SharedTier:
        folder = str(tmp_path / "l2")
        tiers.append(SharedTier(folder, size, "disk", files, rescan_s, touch_s=0.0))
        return tiers[-1]

    yield make
    for tier in tiers:
        tier.close()


def value_files(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "l2").rglob("*") if path.is_file())


def test_one_server_stores_what_another_reads(opened: Open) -> None:
    here, there = opened(), opened()
    assert set(here.batch_put([filled(n, shard=2) for n in range(4)])) == {Status.OK}
    into = [empty(n, shard=2) for n in range(4)]
    assert set(there.batch_get_into(into)) == {Status.OK}
    assert [one.payload for one in into] == [filled(n, shard=2).payload for n in range(4)]
    there.delete([name_of(1, shard=2), name_of(77)])
    assert here.batch_exists([name_of(n, shard=2) for n in range(4)]) == [True, False, True, True]
    here.clear(FINGERPRINT)
    assert there.batch_get_into([empty(2, shard=2)]) == [Status.ABSENT]


def test_a_value_appears_whole_or_not_at_all(opened: Open, tmp_path: Path) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    for call in ("pwritev", "sync", "rename", "touch"):
        files.fail(call, errno.EIO)
        assert put(tier, 1) == {Status.ERROR}, call
        files.heal()
        assert tier.batch_exists([name_of(1)]) == [False]
        assert value_files(tmp_path) == []
    files.fail("pwritev", errno.ENOSPC)
    assert put(tier, 1) == {Status.NO_ROOM}
    files.heal()
    assert "its file system is full before size=" in tier.health().warning
    assert put(tier, 1) == {Status.OK}
    assert tier.health().warning == ""
    assert get(tier, 1) is Status.OK
    used = tier.health().used_bytes
    assert used <= disk_use(tmp_path / "l2"), "what was not written is not counted"


@pytest.mark.parametrize("rescan_s", [0.2, 60.0])
def test_the_folder_never_takes_more_than_its_size(
    opened: Open, tmp_path: Path, rescan_s: float
) -> None:
    for begin in (0, 400):
        tier = opened(rescan_s=rescan_s)
        for number in range(begin, begin + 400):
            assert put(tier, number, room=BIG) == {Status.OK}
            if not number % 50:
                assert disk_use(tmp_path / "l2") <= SIZE
        assert tier.troubles.of("evicted") > 100
        tier.close()
        assert disk_use(tmp_path / "l2") <= SIZE


def test_least_recently_used_goes_first(opened: Open) -> None:
    tier = opened()
    number = 0
    while not tier.troubles.of("evicted"):
        put(tier, number, room=BIG)
        number += 1
    used = list(range(30, 50))
    assert held(tier, used, BIG) == used
    put(tier, *range(number, number + number // 2), room=BIG)
    assert held(tier, used, BIG) == used
    assert held(tier, range(30), BIG) == []


def test_what_others_write_is_counted_at_the_next_walk(opened: Open, tmp_path: Path) -> None:
    here = opened(rescan_s=0.1)
    there = opened(size=64 * MIB)
    put(there, *range(300), room=BIG)
    assert there.health().used_bytes > SIZE
    end_s = time.monotonic() + 20.0
    while disk_use(tmp_path / "l2") > SIZE and time.monotonic() < end_s:
        time.sleep(0.05)
    assert disk_use(tmp_path / "l2") <= SIZE
    assert here.troubles.of("evicted")


def test_foreign_files_are_left_alone(opened: Open, tmp_path: Path) -> None:
    folder = tmp_path / "l2"
    theirs = [folder / "data" / "x", folder / FINGERPRINT.hex() / "notes", folder / "0-1"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100_000))
    tier = opened(rescan_s=0.1)
    put(tier, *range(300), room=BIG)
    tier.clear(OTHER)
    assert tier.troubles.of("evicted")
    assert [path.stat().st_size for path in theirs] == [100_000] * 3


def test_unfinished_files_of_the_dead_go_and_those_of_the_living_stay(
    opened: Open, tmp_path: Path
) -> None:
    put(opened(), 1)
    fan = value_files(tmp_path)[0].parent
    for name, age_s in ((".tmp-dead", 7200), (".tmp-alive", 60)):
        (fan / name).write_bytes(bytes(4096))
        os.utime(fan / name, (time.time() - age_s,) * 2)
    opened(rescan_s=0.1)
    assert sorted(path.name[:10] for path in value_files(tmp_path) if path.name[0] == ".") == [
        ".tmp-alive"
    ]


def test_a_flipped_byte_a_short_file_and_none(opened: Open, tmp_path: Path) -> None:
    tier = opened()
    put(tier, 0, 1, 2)
    paths = {path.name: path for path in value_files(tmp_path)}
    flip(paths[f"{name_of(0).key.hex()}-0"], 4096 + 7)
    os.truncate(paths[f"{name_of(1).key.hex()}-0"], 5000)
    os.unlink(paths[f"{name_of(2).key.hex()}-0"])
    assert [get(tier, n) for n in range(3)] == [Status.CORRUPT, Status.CORRUPT, Status.ABSENT]
    assert get(tier, 1) is Status.ABSENT
    assert put(tier, 1, 2) == {Status.OK}
    assert held(tier, [1, 2]) == [1, 2]


def test_reads_that_fail(opened: Open) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    put(tier, 0)
    files.fail("preadv", errno.EIO)
    assert get(tier, 0) is Status.ERROR
    files.heal()
    files.shorten("preadv")
    assert get(tier, 0) is Status.OK, "a failed read costs nothing but itself"
    files.heal()
    files.fail("open", errno.ESTALE)
    assert get(tier, 0) is Status.ERROR
    assert put(tier, 5) == {Status.ERROR}


def test_a_vanished_folder_heals_by_the_next_put(opened: Open, tmp_path: Path) -> None:
    tier = opened()
    put(tier, 0)
    shutil.rmtree(tmp_path / "l2")
    assert get(tier, 0) is Status.ABSENT
    assert put(tier, 0) == {Status.OK}
    assert get(tier, 0) is Status.OK
    assert tier.health().ok


def test_health_says_why_not(opened: Open) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    files.fail("open", errno.EROFS)
    health = tier.health()
    assert not health.ok
    assert "Read-only file system" in health.note
    files.fail("open", errno.ENOSPC)
    assert tier.health().ok, "a full disk still serves what it has"


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TierError, match=r"file/l2: Not a directory$"):
        SharedTier(str(tmp_path / "file" / "l2"), SIZE, "disk")
    with pytest.raises(TierError, match=r"/file: it is there and is no folder$"):
        SharedTier(str(tmp_path / "file"), SIZE, "disk")
    with pytest.raises(TierError, match=f"{tmp_path / 'nvme'} is not there, "):
        SharedTier(str(tmp_path / "nvme" / "l2"), SIZE, "disk")
    assert not (tmp_path / "nvme").exists()


def test_a_value_longer_than_the_folder_has_no_room(opened: Open) -> None:
    tier = opened()
    assert put(tier, 1, room=32 * MIB) == {Status.NO_ROOM}


def test_o_direct_is_not_needed(opened: Open) -> None:
    files = FaultyFiles()
    files.fail("open_direct", errno.EINVAL)
    tier = opened(files=files)
    put(tier, *range(5))
    assert held(tier, range(5)) == list(range(5))


def test_servers_that_write_and_delete_at_once(opened: Open, tmp_path: Path) -> None:
    tiers = [opened(size=16 * MIB, rescan_s=0.05) for _ in range(3)]
    wrong: list[object] = []

    def work(number: int) -> None:
        rng, tier = Random(number), tiers[number]
        try:
            for _ in range(120):
                value = rng.randrange(60)
                chance = rng.random()
                if chance < 0.6:
                    status = put(tier, value)
                    if not status <= {Status.OK, Status.NO_ROOM}:
                        wrong.append(status)
                elif chance < 0.9:
                    found = get(tier, value)
                    if found not in (Status.OK, Status.ABSENT):
                        wrong.append(found)
                elif chance < 0.99:
                    tier.delete([name_of(value)])
                else:
                    tier.clear(FINGERPRINT)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert wrong == []
    assert disk_use(tmp_path / "l2") > ROOM


def test_it_lists_what_anybody_used_last(opened: Open) -> None:
    here, there = opened(), opened()
    for number in range(5):
        put(here, number)
        time.sleep(0.002)
    assert there.hottest(FINGERPRINT, 0, 100) == [name_of(n).key for n in reversed(range(5))]
    assert there.hottest(FINGERPRINT, 1, 100) == []
    assert there.hottest(OTHER, 0, 100) == []
    assert get(here, 1) is Status.OK
    assert there.hottest(FINGERPRINT, 0, 1) == [name_of(1).key]
    assert there.peek(name_of(3)) == bytes(filled(3).header)
    assert there.peek(name_of(77)) == b""


def test_what_namespaces_are_is_shared_and_goes_with_them(opened: Open, tmp_path: Path) -> None:
    here, there = opened(), opened()
    here.keep_namespace(FINGERPRINT, b"one")
    put(here, 1)
    assert there.namespaces() == [FINGERPRINT]
    assert there.namespace(FINGERPRINT) == b"one"
    there.clear(FINGERPRINT)
    assert here.namespaces() == []
    assert here.namespace(FINGERPRINT) == b""
    put(here, 2, fingerprint=OTHER)
    assert there.namespaces() == [OTHER], "nobody described it, and it can be cleared"
    shutil.rmtree(tmp_path / "l2")
    assert there.namespaces() == []


@pytest.mark.parametrize("call", ["rename", "remove"])
def test_what_cannot_be_forgotten_is_told(opened: Open, call: str) -> None:
    """Else the server would read it again as if it had been."""
    files = FaultyFiles()
    tier = opened(files=files)
    one = filled(1)
    assert tier.batch_put([one]) == [Status.OK]
    files.fail(call)
    with pytest.raises((OSError, TierError)):
        tier.clear(FINGERPRINT) if call == "rename" else tier.delete([one.name])
    files.heal()
    assert tier.batch_exists([one.name]) == [True]


def test_what_was_forgotten_is_forgotten_on_the_disk_too(opened: Open, tmp_path: Path) -> None:
    files, root = FaultyFiles(), str(tmp_path / "l2")
    tier = opened(files=files)
    one, two = filled(1), filled(2)
    assert set(tier.batch_put([one, two])) == {Status.OK}
    tier.delete([one.name])
    assert files.synced == [os.path.join(root, FINGERPRINT.hex(), one.name.key.hex()[:2])]
    files.fail("sync_folder", times=1)
    with pytest.raises(OSError, match="Input/output"):
        tier.clear(FINGERPRINT)
    files.synced.clear()
    tier.clear(FINGERPRINT)  # finds nothing to rename, and syncs what the first one did
    assert files.synced == [root]
    assert wait_until(lambda: not list(Path(root).glob(".cleared-*")))
    shutil.rmtree(root)
    tier.clear(FINGERPRINT)
    tier.delete([two.name])
