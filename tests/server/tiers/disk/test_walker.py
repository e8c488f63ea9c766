"""A walk tells all that is there, once, and removes what nobody finishes."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from server.tiers.disk.files import BLOCK_BYTES
from server.tiers.disk.holdings import Holdings, Value
from server.tiers.disk.marks import Marks
from server.tiers.disk.queues import Candidate
from server.tiers.disk.shares import Whose
from server.tiers.disk.troubles import Troubles
from server.tiers.disk.walker import Stripes, Walker, at_of
from tests.server.tiers.disk.rig import FINGERPRINT, FaultyFiles, disk_use, name_of
from tests.server.tiers.disk.test_listed import A, write


class Walked:
    """A walker with what it tells."""

    def __init__(self, root: Path) -> None:
        self.files, self.holdings, self.stripes = FaultyFiles(), Holdings(), Stripes()
        marks = Marks(self.files)
        marks.look_for([A])
        self.troubles = Troubles("disk")
        lock = threading.Condition()
        self.walker = Walker(
            self.files,
            str(root),
            marks,
            self.troubles,
            self.holdings,
            lock,
            self.stripes,
            ".tmp-me",
        )
        self.found: list[Candidate] = []

    def walk(self) -> None:
        self.found.clear()
        self.holdings.begin()
        self.walker.walk(self.found.append)
        self.holdings.end()


def test_all_values_are_told_and_counted(tmp_path: Path) -> None:
    paths = [write(tmp_path, name_of(number), A if number % 2 else b"") for number in range(6)]
    walked = Walked(tmp_path)
    walked.walk()
    assert sorted(one.path for one in walked.found) == sorted(map(str, paths))
    length = BLOCK_BYTES
    assert walked.holdings.live.groups == {
        Whose(FINGERPRINT): (3, 3 * length),
        Whose(FINGERPRINT, A): (3, 3 * length),
    }
    # The folder itself is not counted.
    assert abs(walked.holdings.live.size_bytes - disk_use(tmp_path)) <= BLOCK_BYTES


def test_what_is_no_value_is_counted_and_left_or_removed_if_nobody_finishes_it(
    tmp_path: Path,
) -> None:
    fan = write(tmp_path, name_of(1)).parent
    for name, age_s in ((".tmp-me", 0), (".tmp-other", 60), (".tmp-dead", 7200), ("notes", 9999)):
        (fan / name).write_bytes(bytes(8192))
        os.utime(fan / name, (time.time() - age_s,) * 2)
    (fan / f"{'ab' * 16}-0").mkdir()
    walked = Walked(tmp_path)
    walked.walk()
    assert len(walked.found) == 1
    assert not (fan / ".tmp-dead").exists()
    assert {path.name for path in fan.iterdir() if path.name[0] != "0"} >= {
        ".tmp-me",
        ".tmp-other",
        "notes",
        f"{'ab' * 16}-0",
    }
    before = walked.holdings.live.size_bytes
    (fan / ".tmp-me").unlink()
    walked.walk()
    assert walked.holdings.live.size_bytes == before, "this server's own counts otherwise"


def test_a_file_whose_salt_cannot_be_read_counts_for_its_namespace(tmp_path: Path) -> None:
    path = write(tmp_path, name_of(1), A)
    walked = Walked(tmp_path)
    walked.files.fail("preadv", errno.EIO)
    walked.walk()
    assert walked.troubles.of("read errors") == 1
    assert set(walked.holdings.live.groups) == {Whose(FINGERPRINT)}
    walked.files.heal()
    value = walked.walker.look(str(path))
    assert isinstance(value, Value)
    assert value.whose == Whose(FINGERPRINT, A)
    assert walked.walker.look(f"{path}1") is None


def test_a_walk_waits_for_who_is_at_a_file_and_knows_of_it(tmp_path: Path) -> None:
    path = write(tmp_path, name_of(1))
    walked = Walked(tmp_path)
    with walked.stripes.of(path.parent.name):
        thread = threading.Thread(target=walked.walk)
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        value = walked.walker.look(str(path))
        path.unlink()
        walked.holdings.change(at_of(str(path)), value, None)
    thread.join(10.0)
    assert walked.holdings.live.groups == {}


def test_what_is_named_while_a_folder_is_looked_at_is_counted_once(tmp_path: Path) -> None:
    fan = write(tmp_path, name_of(1)).parent
    walked = Walked(tmp_path)
    stripe, names = walked.stripes.of(fan.name), walked.files.names
    threads: list[threading.Thread] = []

    def named(path: str) -> list[str]:
        if path == str(fan):
            stripe.acquire()
            other = write(tmp_path, name_of(1, shard=5))
            threads.append(threading.Thread(target=counted, args=(other,)))
            threads[0].start()
        return names(path)

    def counted(other: Path) -> None:
        time.sleep(0.05)  # a walk that does not wait is over by then
        value = walked.walker.look(str(other))
        walked.holdings.change(at_of(str(other)), None, value)
        stripe.release()

    walked.files.names = named  # type: ignore[method-assign]
    walked.walk()
    threads[0].join(10.0)
    assert len(walked.found) == 2
    assert walked.holdings.live.groups == {Whose(FINGERPRINT): (2, 2 * BLOCK_BYTES)}


def test_what_was_cleared_is_counted_until_it_is_removed(tmp_path: Path) -> None:
    write(tmp_path, name_of(1))
    (tmp_path / FINGERPRINT.hex()).rename(tmp_path / ".cleared-1")
    walked = Walked(tmp_path)
    walked.walk()
    assert walked.found == []
    assert walked.holdings.live.size_bytes >= BLOCK_BYTES
    gone: list[int] = []
    walked.files.fail("remove", times=1)
    walked.walker.remove_cleared(gone.append)
    assert gone == []
    walked.walker.remove_cleared(gone.append)
    assert len(gone) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    walked = Walked(tmp_path)
    walked.files.fail("names")
    with pytest.raises(OSError, match="Input/output"):
        walked.walk()
