"""The slab: what is put comes back, what goes wrong is a status, the folder keeps its size."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from server.core.tiers.parts import Status
from server.tiers import values
from server.tiers.disk.slab import SlabTier
from server.tiers.interface import TierError
from tests.server.tiers.disk.rig import (
    FINGERPRINT,
    MIB,
    OTHER,
    PARENT,
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

SIZE = 16 * MIB
Open = Callable[..., SlabTier]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    tiers: list[SlabTier] = []

    def make(size: int = SIZE, files: FaultyFiles | None = None) -> SlabTier:
        tiers.append(SlabTier(str(tmp_path / "l2"), size, "disk", files))
        return tiers[-1]

    yield make
    for tier in tiers:
        tier.close()


def segments(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "l2" / "segments").iterdir())


def test_what_is_put_comes_back_and_only_that(opened: Open) -> None:
    tier = opened()
    parts = [filled(n, shard=shard) for n in range(8) for shard in range(3)]
    assert set(tier.batch_put(parts)) == {Status.OK}
    into = [empty(n, shard=shard) for n in range(8) for shard in range(3)]
    assert set(tier.batch_get_into(into)) == {Status.OK}
    assert [one.payload for one in into] == [one.payload for one in parts]
    assert {values.check(one, PARENT) for one in into} == {Status.OK}
    assert tier.batch_exists([name_of(0, shard=2), name_of(0, shard=3), name_of(9)]) == [
        True,
        False,
        False,
    ]
    assert get(tier, 0, fingerprint=OTHER) is Status.ABSENT


@pytest.mark.parametrize("payload", [1, 4095, 4096, 4097, ROOM - 1])
def test_a_payload_shorter_than_its_room(opened: Open, payload: int) -> None:
    tier = opened()
    assert tier.batch_put([filled(1, payload=payload)]) == [Status.OK]
    assert get(tier, 1, payload=payload) is Status.OK
    assert get(tier, 1, payload=ROOM) is Status.CORRUPT


def test_a_value_that_is_there_is_left_as_it_is(opened: Open) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    put(tier, 1)
    writes = files.calls["pwritev"]
    assert put(tier, 1) == {Status.OK}
    assert files.calls["pwritev"] == writes


def test_deleted_and_cleared_stay_away(opened: Open) -> None:
    tier = opened()
    put(tier, *range(10))
    put(tier, *range(10), fingerprint=OTHER)
    tier.delete([name_of(3), name_of(99)])
    assert held(tier, range(10)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    tier.clear(FINGERPRINT)
    assert held(tier, range(10)) == []
    tier.close()
    tier = opened()
    assert held(tier, range(10)) == []
    assert {get(tier, n, fingerprint=OTHER) for n in range(10)} == {Status.OK}


def test_the_folder_never_takes_more_than_its_size(opened: Open, tmp_path: Path) -> None:
    rng = Random(5)
    for begin in (0, 1000, 2000):
        tier = opened()
        for number in range(begin, begin + 1000):
            room = rng.choice([4096, ROOM, 65_536])
            assert put(tier, number, room=room) == {Status.OK}
            if not number % 100:
                assert disk_use(tmp_path / "l2") <= SIZE
        health = tier.health()
        assert SIZE // 2 < health.used_bytes <= health.capacity_bytes == SIZE
        tier.close()
        assert disk_use(tmp_path / "l2") <= SIZE


def test_the_least_recently_used_goes_and_the_end_of_a_chain_before_its_start(
    opened: Open,
) -> None:
    tier = opened()
    number = 0
    while not tier.troubles.of("evicted"):
        put(tier, number)
        number += 1
    oldest = range(number // 32 + 1)
    assert len(held(tier, oldest)) == len(oldest) - 1, "one of the oldest 32nd went"
    kept = number // 2
    for _ in range(3):
        assert get(tier, kept) is Status.OK
        put(tier, *range(number, number + kept // 2))
        number += kept // 2
    assert get(tier, kept) is Status.OK
    chain = [filled(n) for n in range(100_000, 100_016)]
    assert set(tier.batch_put(chain)) == {Status.OK}
    while True:
        left = [
            n for n, is_there in enumerate(tier.batch_exists([p.name for p in chain])) if is_there
        ]
        assert left == list(range(len(left)))
        if not left:
            break
        put(tier, number)
        number += 1


def test_slots_of_another_length_get_their_segments(opened: Open, tmp_path: Path) -> None:
    tier = opened()
    while not tier.troubles.of("evicted"):
        put(tier, *range(100), room=4096)
        put(tier, *range(1000, 3000), room=4096)
    old = [path.name for path in segments(tmp_path)]
    for number in range(10_000, 10_400):
        assert put(tier, number, room=65_536) == {Status.OK}
    lengths = [path.name.split("-")[1] for path in segments(tmp_path)]
    assert set(lengths) == {str(4096 + 65_536)}, old
    assert get(tier, 10_399, room=65_536) is Status.OK
    assert disk_use(tmp_path / "l2") <= SIZE


def test_a_slot_longer_than_all_has_no_room(opened: Open) -> None:
    tier = opened()
    assert put(tier, 1, room=32 * MIB) == {Status.NO_ROOM}
    assert put(tier, 2) == {Status.OK}


def test_it_is_warm_after_a_restart_and_remembers_what_was_used(opened: Open) -> None:
    tier = opened()
    number = 0
    while not tier.troubles.of("evicted"):
        put(tier, number)
        number += 1
    used = list(range(100, 150))
    assert held(tier, used) == used
    tier.close()
    tier = opened()
    everything = held(tier, range(number))
    assert len(everything) == number - tier.troubles.of("evicted") - 1
    tier.close()
    tier = opened()
    assert held(tier, used) == used
    put(tier, *range(number, number + len(everything) // 2))
    assert held(tier, used) == used


def test_a_second_server_is_refused_in_one_line(opened: Open, tmp_path: Path) -> None:
    opened()
    with pytest.raises(TierError, match=r"l2 is in use by another server \(pid .*\); give each"):
        opened()


@pytest.mark.parametrize(
    ("number", "status"),
    [(errno.EIO, Status.ERROR), (errno.EROFS, Status.ERROR), (errno.ENOSPC, Status.NO_ROOM)],
)
def test_a_failed_write_is_never_seen_again(
    opened: Open, tmp_path: Path, number: int, status: Status
) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    put(tier, 0)
    files.fail("pwritev", number)
    assert put(tier, 1, 2, 3) == {status}
    assert tier.batch_exists([name_of(n) for n in range(4)]) == [True, False, False, False]
    files.heal()
    assert put(tier, 1, 2, 3) == {Status.OK}
    assert held(tier, range(4)) == [0, 1, 2, 3]
    assert tier.troubles.of("write errors") == 3


def test_a_failed_read_is_an_error_once_and_then_a_miss(opened: Open) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    put(tier, 0, 1)
    files.fail("preadv", errno.EIO, times=1)
    assert get(tier, 0) is Status.ERROR
    assert (get(tier, 0), get(tier, 1)) == (Status.ABSENT, Status.OK)
    assert put(tier, 0) == {Status.OK}
    assert get(tier, 0) is Status.OK
    assert tier.troubles.of("read errors") == 1


def test_short_reads_and_writes_are_continued(opened: Open) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    files.shorten("pwritev")
    assert put(tier, 0, 1) == {Status.OK}
    files.heal()
    files.shorten("preadv")
    assert held(tier, [0, 1]) == [0, 1]
    assert files.shortened >= 4


def test_no_room_on_the_file_system(opened: Open) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    files.fail("allocate", errno.ENOSPC)
    assert put(tier, 0) == {Status.NO_ROOM}
    files.heal()
    assert put(tier, 0) == {Status.NO_ROOM}, "it is not asked again at once"
    assert files.calls["allocate"] == 1


def test_no_room_for_another_segment_evicts(opened: Open) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    put(tier, 0)
    files.fail("allocate", errno.ENOSPC)
    number = 1
    assert tier.health().warning == ""
    while not tier.troubles.of("evicted"):
        assert put(tier, number) == {Status.OK}
        number += 1
    assert files.calls["allocate"] == 2
    health = tier.health()
    assert health.ok
    assert "its file system is full before size=" in health.warning
    assert tier.health().warning == health.warning, "nothing moves in it: the log has it once"


def test_where_o_direct_is_refused_it_is_said_once(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    files.fail("open_direct", errno.EINVAL)
    tier = opened(files=files)
    put(tier, *range(200))
    assert held(tier, range(200)) == list(range(200))
    assert [r.message for r in caplog.records if "O_DIRECT" in r.message] == [
        "tier disk: cached: O_DIRECT is refused here: reads and writes are cached (1 so far)"
    ]


def test_a_flipped_byte_anywhere_is_noticed(opened: Open, tmp_path: Path) -> None:
    tier = opened()
    put(tier, 0)
    (segment,) = segments(tmp_path)
    for offset in (0, 40, 127, 4096, 4096 + ROOM - 1):
        flip(segment, offset)
        assert get(tier, 0) is Status.CORRUPT, offset
        flip(segment, offset)
    assert get(tier, 0) is Status.OK


def test_a_truncated_file_is_a_miss_and_heals(opened: Open, tmp_path: Path) -> None:
    tier = opened()
    put(tier, 0, 1, 2)
    (segment,) = segments(tmp_path)
    with open(segment, "r+b") as file:
        file.truncate(4096 + ROOM + 5000)
    assert [get(tier, n) for n in (0, 1, 2)] == [Status.OK, Status.CORRUPT, Status.CORRUPT]
    assert [get(tier, n) for n in (0, 1, 2)] == [Status.OK, Status.ABSENT, Status.ABSENT]
    assert put(tier, 1, 2) == {Status.OK}
    assert held(tier, [0, 1, 2]) == [0, 1, 2]
    assert tier.troubles.of("truncated") == 2


def test_a_vanished_folder_is_made_anew(opened: Open, tmp_path: Path) -> None:
    tier = opened()
    put(tier, 0)
    tier.keep_namespace(FINGERPRINT, b"what it is")
    shutil.rmtree(tmp_path / "l2")
    tier.keep_namespace(OTHER, b"told meanwhile")
    assert tier.health().ok
    assert tier.troubles.of("made anew") == 1
    assert tier.namespace(FINGERPRINT) == b"what it is", "nobody tells it once more"
    assert tier.namespace(OTHER) == b"told meanwhile"
    assert get(tier, 0) is Status.ABSENT
    assert put(tier, 0) == {Status.OK}
    assert get(tier, 0) is Status.OK
    assert disk_use(tmp_path / "l2") <= SIZE


def test_puts_notice_a_vanished_folder(opened: Open, tmp_path: Path) -> None:
    tier = opened()
    put(tier, 0)
    tier.health()
    shutil.rmtree(tmp_path / "l2")
    assert put(tier, 1) == {Status.ERROR}
    assert tier.troubles.of("folder gone") == 1


def test_a_folder_that_takes_no_writes_is_not_healthy(opened: Open) -> None:
    files = FaultyFiles()
    tier = opened(files=files)
    put(tier, 0)
    files.fail("sync", errno.EROFS)
    health = tier.health()
    assert not health.ok
    assert "Read-only file system" in health.note
    assert get(tier, 0) is Status.OK
    files.heal()
    assert tier.health().ok


def test_a_folder_that_cannot_be_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TierError, match=r"file/l2: Not a directory$"):
        SlabTier(str(tmp_path / "file" / "l2"), SIZE, "disk")
    with pytest.raises(TierError, match=r"/file: it is there and is no folder$"):
        SlabTier(str(tmp_path / "file"), SIZE, "disk")


def test_folders_above_it_are_not_made(opened: Open, tmp_path: Path) -> None:
    mounted = tmp_path / "nvme"
    with pytest.raises(TierError, match=f"{mounted} is not there, .* not mounted"):
        SlabTier(str(mounted / "l2"), SIZE, "disk")
    mounted.mkdir()
    tier = SlabTier(str(mounted / "l2"), SIZE, "disk")
    put(tier, 0)
    mounted.rename(tmp_path / "away")
    assert "not mounted" in tier.health().note
    assert not mounted.exists()
    (tmp_path / "away").rename(mounted)
    assert tier.health().ok
    assert get(tier, 0) is Status.OK
    tier.close()


def test_a_size_beyond_the_file_system_is_said_and_what_is_there_is_used(opened: Open) -> None:
    files = FaultyFiles()
    files.small = (8 * MIB, 2 * MIB)
    tier = opened(size=64 << 30, files=files)
    assert "l2: size=64 GiB, and its file system has 8 MiB in all" in tier.health().warning
    assert put(tier, 0) == {Status.OK}
    assert get(tier, 0) is Status.OK


def test_files_are_for_this_user_alone(opened: Open, tmp_path: Path) -> None:
    put(opened(), 0)
    modes = {
        path.lstat().st_mode & 0o077 for path in [tmp_path / "l2", *(tmp_path / "l2").rglob("*")]
    }
    assert modes == {0}


def test_many_threads_never_see_anothers_bytes(opened: Open, tmp_path: Path) -> None:
    tier = opened()
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = Random(seed)
        try:
            for _ in range(300):
                number, room = rng.randrange(400), rng.choice([ROOM, 65_536])
                number += 1000 * (room == ROOM)
                chance = rng.random()
                if chance < 0.55:
                    put(tier, number, room=room)
                elif chance < 0.95:
                    status = get(tier, number, room=room)
                    if status not in (Status.OK, Status.ABSENT):
                        wrong.append(status)
                elif chance < 0.99:
                    tier.delete([name_of(number)])
                else:
                    tier.clear(FINGERPRINT)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert wrong == []
    assert disk_use(tmp_path / "l2") <= SIZE
    assert tier.troubles.line().count("errors") == 0
