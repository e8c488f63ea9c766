"""A folder as an earlier run, a kill or somebody's hand left it: it opens, and nothing is wrong."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from server.core.tiers.parts import Status
from server.tiers import disk
from server.tiers.disk import index as index_files
from server.tiers.disk import store as stores
from server.tiers.disk.entries import Entry
from server.tiers.disk.index import ENTRY_DTYPE, Index
from server.tiers.disk.plan import NAME_BYTES, divide
from server.tiers.disk.segments import Segment
from server.tiers.disk.shared import SharedTier
from server.tiers.disk.shares import Shares
from server.tiers.disk.slab import SlabTier
from server.tiers.interface import TierError
from server.tierspec import parse
from tests.server.tiers.disk.rig import MIB, FaultyFiles, disk_use, flip, get, held, put

SIZE = 16 * MIB

WRITER = """
import sys
from server.tiers.disk.shares import Shares
from server.tiers.disk.slab import SlabTier
from tests.server.tiers.disk.rig import put
tier = SlabTier(sys.argv[1], int(sys.argv[2]), "disk")
number = int(sys.argv[3])
while True:
    put(tier, number)
    print(number, flush=True)
    number += 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "l2"


def opened(folder: Path, files: FaultyFiles | None = None, size: int = SIZE) -> SlabTier:
    return SlabTier(str(folder), size, "disk", files)


def store_some(folder: Path, count: int = 100) -> None:
    tier = opened(folder)
    assert put(tier, *range(count)) == {Status.OK}
    tier.close()


@pytest.mark.parametrize("after_s", [0.6, 1.7])
def test_a_killed_porter_leaves_nothing_wrong(folder: Path, after_s: float) -> None:
    begin = 0
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), str(SIZE), str(begin)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == f"{begin}\n"
        time.sleep(after_s)
        writer.send_signal(signal.SIGKILL)
        # Sorted as they were put; the last line may be cut.
        written = begin + writer.stdout.read().count("\n")
        writer.stdout.close()
        writer.wait(10.0)
        tier = opened(folder)
        found = held(tier, range(begin, written + 2))
        young = [number for number in found if number > (found[0] + found[-1]) // 2]
        assert young == list(range(young[0], found[-1] + 1))
        assert found[-1] >= written - 1, "what was answered is not forgotten"
        assert disk_use(folder) <= SIZE
        assert put(tier, written + 1) == {Status.OK}
        tier.close()
        begin = written + 2


def no_index(folder: Path) -> None:
    shutil.rmtree(folder / "index")


def a_file(folder: Path) -> None:
    no_index(folder)
    (folder / "index").write_text("x")


def garbage(folder: Path) -> None:
    (folder / "index" / "data.mdb").write_bytes(os.urandom(50_000))


def short(folder: Path) -> None:
    os.truncate(folder / "index" / "data.mdb", 12_288)


def endless(folder: Path) -> None:
    (folder / "starts").write_text(f"{stores.MAX_STARTS}\n")


@pytest.mark.parametrize("spoil", [no_index, a_file, garbage, short, endless])
def test_a_lost_index_costs_what_was_stored_and_no_more(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    store_some(folder)
    spoil(folder)
    tier = opened(folder)
    assert held(tier, range(100)) == []
    assert disk_use(folder) < SIZE // 2, "slots that nobody can find are given back"
    assert put(tier, *range(50)) == {Status.OK}
    tier.close()
    tier = opened(folder)
    assert held(tier, range(100)) == list(range(50))
    tier.close()


def test_starts_are_counted_only_while_they_come_to_nothing(folder: Path) -> None:
    for _ in range(stores.MAX_STARTS + 2):
        store_some(folder, 3)
        assert (folder / "starts").read_text() == "0\n"


def test_an_index_older_than_its_segments(folder: Path, tmp_path: Path) -> None:
    store_some(folder, 60)
    shutil.copytree(folder / "index", tmp_path / "old")
    tier = opened(folder)
    number = 60
    while not tier.troubles.of("evicted") > 40:
        put(tier, number)
        number += 1
    tier.close()
    shutil.rmtree(folder / "index")
    shutil.move(tmp_path / "old", folder / "index")
    tier = opened(folder)
    statuses = [get(tier, one) for one in range(60)]
    assert set(statuses) == {Status.OK, Status.ABSENT}
    assert tier.troubles.of("stale entries") == statuses.count(Status.ABSENT)
    tier.close()


def test_entries_that_lead_nowhere_are_dropped(folder: Path) -> None:
    store_some(folder, 10)
    index = Index(str(folder / "index"), divide(SIZE).index_bytes)
    wrong = {
        b"a" * NAME_BYTES: Entry(999, 0, 1, 1),
        b"b" * NAME_BYTES: Entry(1, 1 << 31, 1, 1),
        b"c" * NAME_BYTES: Entry(1, 0, 1, 1),
    }
    index.write(wrong)
    index.close()
    tier = opened(folder)
    assert len(held(tier, range(10))) >= 9
    tier.close()
    index = Index(str(folder / "index"), divide(SIZE).index_bytes)
    left = {bytes(name) for names, _ in index.rows() for name in names}
    index.close()
    assert len(left) == 10
    assert not left & {b"a" * NAME_BYTES, b"b" * NAME_BYTES}


def test_lost_and_cut_segments(folder: Path) -> None:
    tier = opened(folder)
    assert put(tier, *range(200)) == {Status.OK}
    tier.close()
    files = sorted((folder / "segments").iterdir())
    assert len(files) > 3
    files[0].unlink()
    os.truncate(files[1], files[1].stat().st_size // 2)
    os.truncate(files[2], 0)
    files[2].with_name("notes").write_text("x")
    flip(files[3], 4096)
    tier = opened(folder)
    statuses = [get(tier, number) for number in range(200)]
    assert statuses.count(Status.CORRUPT) == 1
    assert 20 < statuses.count(Status.ABSENT) < 180
    assert put(tier, *range(1000, 1200)) == {Status.OK}
    tier.close()
    tier = opened(folder)
    assert held(tier, range(1000, 1200)) == list(range(1000, 1200))
    tier.close()


def test_a_smaller_size_is_kept_from_the_start(folder: Path) -> None:
    tier = opened(folder, size=48 * MIB)
    assert put(tier, *range(1500)) == {Status.OK}
    tier.close()
    assert disk_use(folder) > SIZE
    tier = opened(folder)
    assert disk_use(folder) <= SIZE
    kept = held(tier, range(1500))
    assert kept
    assert min(kept) > 500
    tier.close()


def test_nothing_stays_open_when_it_cannot_be_opened(folder: Path) -> None:
    store_some(folder)
    files = FaultyFiles()
    before = len(os.listdir("/proc/self/fd"))
    files.fail("names", errno.EIO)
    for _ in range(3):
        with pytest.raises(TierError, match="Input/output error"):
            opened(folder, files)
    assert len(os.listdir("/proc/self/fd")) == before
    files.heal()
    tier = opened(folder, files)
    assert held(tier, range(100)) == list(range(100))
    tier.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_adopt_takes_the_first_of_two_that_claim_a_slot() -> None:
    segment = Segment(1, 8192, 4, -1, True, "")
    places = [(1, 2, 0, 7), (1, 2, 0, 8), (1, 3, 0, 9), (5, 0, 0, 1)]
    entries = np.array([(*place, b"") for place in places], ENTRY_DTYPE)
    names = np.repeat(np.arange(4, dtype=np.uint8)[:, None], NAME_BYTES, axis=1)
    stale = stores.adopt({1: segment}, Shares(), names[:2], entries[:2])
    stale += stores.adopt({1: segment}, Shares(), names[1:], entries[1:])
    one, three = bytes([1]) * NAME_BYTES, bytes([3]) * NAME_BYTES
    assert stores.adopt({}, Shares(), names[:0], entries[:0]) == []
    assert sorted(stale) == [one, one, three]
    assert segment.used_names() == [bytes([0]) * NAME_BYTES, bytes([2]) * NAME_BYTES]


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "kvkeep-test", str(mounted)]
    may_mount = not os.geteuid() and shutil.which("mount") is not None
    if not may_mount or subprocess.run(command, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


@pytest.mark.parametrize("layout", [SlabTier, SharedTier])
def test_a_file_system_that_is_smaller_than_the_size(
    small_tmpfs: Path, layout: type[SlabTier] | type[SharedTier]
) -> None:
    tier = layout(str(small_tmpfs / "l2"), 64 * MIB, "disk")
    statuses = [put(tier, number) for number in range(1200)]
    assert {Status.OK} in statuses
    assert all(one <= {Status.OK, Status.NO_ROOM} for one in statuses)
    assert held(tier, range(1200))
    assert tier.health().ok, "a full disk still serves what it has"
    assert tier.troubles.of("disk full") >= 1
    tier.close()


def test_the_operators_url_opens_either_layout(tmp_path: Path) -> None:
    for layout in ("slab", "files"):
        spec = parse(f"disk:{tmp_path}/{layout}?size=16M&layout={layout}")
        tier = disk.open(spec)
        assert put(tier, 1) == {Status.OK}
        assert get(tier, 1) is Status.OK
        assert tier.health().capacity_bytes == SIZE
        tier.register(0, 4096)
        tier.unregister(0, 4096)
        tier.close()
    assert index_files.FORMAT
