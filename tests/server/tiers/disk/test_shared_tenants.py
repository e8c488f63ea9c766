"""Whose the values of a shared folder are: told by the folder alone, and counted exactly."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from server.core.tiers.parts import Share, Status
from server.tiers.disk.files import BLOCK_BYTES
from server.tiers.interface import Sharing
from tests.server.tiers.disk.rig import (
    FINGERPRINT,
    OTHER,
    FaultyFiles,
    get,
    held,
    name_of,
)
from tests.server.tiers.disk.tenants import (
    BOTH,
    FIRST_OF_B,
    LENGTH,
    A,
    B,
    C,
    Open,
    agreed,
    put,
    told,
)
from tests.wire.process import wait_until


def test_salts_are_found_by_any_server_and_go_in_every_namespace(
    opened: Open, folder: Path
) -> None:
    here, there = opened(), opened()
    put(here, A, range(30))
    put(here, b"", range(30, 40))
    put(here, A, range(5), fingerprint=OTHER)
    put(here, B, range(FIRST_OF_B, FIRST_OF_B + 20), fingerprint=OTHER)
    names = there.of_salt(A, 100)
    assert Counter(name.fingerprint for name in names) == {FINGERPRINT: 30, OTHER: 5}
    assert len(there.of_salt(A, 7)) == 7
    assert there.of_salt(C, 100) == []
    there.delete(names)
    assert here.of_salt(A, 100) == []
    assert held(here, range(40)) == list(range(30, 40))
    assert len(here.of_salt(B, 100)) == 20
    assert isinstance(here, Sharing)


def test_a_folder_of_a_former_version_is_read_and_its_values_are_nobodys(
    opened: Open, folder: Path
) -> None:
    tier = opened()
    put(tier, A, range(5))
    for path in folder.glob("*/*/*-0"):
        os.truncate(path, LENGTH)  # that one wrote whole blocks
        with open(path, "r+b") as file:
            file.seek(128)
            file.write(bytes(16))
    tier = opened()
    tier.set_quotas(BOTH)
    assert held(tier, range(5)) == list(range(5))
    assert tier.of_salt(A, 10) == []
    assert told(tier) == {FINGERPRINT: 5 * LENGTH}
    assert put(tier, A, range(6)) == {Status.OK: 6}
    assert told(tier) == {FINGERPRINT: 6 * LENGTH, A: LENGTH}, "what is there stays as it is"


def test_a_value_without_a_salt_is_written_as_ever(opened: Open, folder: Path) -> None:
    tier = opened(files := FaultyFiles())
    put(tier, b"", range(1))
    (path,) = folder.glob("*/*/*-0")
    data = path.read_bytes()
    assert len(data) == LENGTH
    assert data[128:BLOCK_BYTES] == bytes(BLOCK_BYTES - 128)
    assert "set_length" not in files.calls


def test_sums_are_exact_after_whatever_becomes_of_a_value(opened: Open, folder: Path) -> None:
    tier = opened()
    tier.set_quotas(BOTH)
    for salt, space in ((A, FINGERPRINT), (b"", FINGERPRINT), (B, OTHER)):
        put(tier, salt, range(10 * len(salt), 10 * len(salt) + 8), fingerprint=space)
    assert agreed(tier, folder, A, B)
    tier.delete([name_of(161), name_of(162), name_of(777)])
    put(tier, A, range(160, 168))
    assert agreed(tier, folder, A, B)
    tier.clear(OTHER)
    assert B not in told(tier)
    put(tier, B, range(3), fingerprint=OTHER)
    assert told(tier)[B] == 3 * LENGTH
    tier.close()
    tier = opened()
    tier.set_quotas(BOTH)
    assert wait_until(lambda: agreed(tier, folder, A, B))


def test_a_damaged_value_goes_and_is_not_counted_after_the_next_walk(
    opened: Open, folder: Path
) -> None:
    tier = opened(rescan_s=0.05)
    tier.set_quotas(BOTH)
    put(tier, A, range(5))
    for number, path in enumerate(folder.glob("*/*/*-0")):
        os.truncate(path, number * BLOCK_BYTES)
    assert Counter(get(tier, number) for number in range(5)) == {Status.CORRUPT: 5}
    assert wait_until(lambda: told(tier) == {})
    assert put(tier, A, range(5)) == {Status.OK: 5}
    assert wait_until(lambda: told(tier) == {A: 5 * LENGTH, FINGERPRINT: 5 * LENGTH})


def test_a_salt_that_cannot_be_read_is_unknown_and_its_value_stays(
    opened: Open, folder: Path
) -> None:
    put(opened(), A, range(3))
    files = FaultyFiles()
    tier = opened(files=files)
    files.fail("preadv", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        tier.of_salt(A, 10)
    tier.set_quotas(BOTH)
    assert wait_until(lambda: tier.troubles.of("read errors") >= 3)
    assert wait_until(lambda: told(tier) == {FINGERPRINT: 3 * LENGTH})
    files.heal()
    assert len(tier.of_salt(A, 10)) == 3


def test_a_folder_too_large_to_be_looked_through_is_unknown(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened()
    put(tier, A, range(3))
    monkeypatch.setattr("server.tiers.disk.listed._FIND_S", -1.0)
    with pytest.raises(OSError, match="too many files"):
        tier.of_salt(A, 10)


# --- ends at any moment ---------------------------------------------------------------------


class Killed(BaseException):
    """The process ended here, as far as the folder can tell."""


class Ending(FaultyFiles):
    """Ends at the n-th call from now on that changes anything."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 << 30

    def sync(self, fd: int) -> None:
        self._struck("sync")  # no machine crashes

    def _struck(self, call: str) -> bool:
        if call in (
            "make_folder",
            "open",
            "pwritev",
            "set_length",
            "sync",
            "touch",
            "rename",
            "remove",
        ):
            self.left -= 1
            if self.left < 0:
                raise Killed
        return super()._struck(call)


def test_a_server_that_ends_between_any_two_calls_leaves_each_value_its_tenant(
    opened: Open, folder: Path
) -> None:
    survivors = ends = 0
    for steps in range(40):
        files = Ending()
        tier = opened(files=files)
        tier.set_quotas(BOTH)
        put(tier, A, range(3))
        files.left = steps
        try:
            put(tier, B, range(FIRST_OF_B, FIRST_OF_B + 2))
            tier.delete([name_of(0), name_of(1)])
            tier.clear(FINGERPRINT)
        except Killed:
            ends += 1
        files.left = 1 << 30  # nothing is done any more by what is dead
        after = opened()
        after.set_quotas(BOTH)
        assert wait_until(lambda after=after: agreed(after, folder, A, B))
        there_of_a, there_of_b = after.of_salt(A, 10), after.of_salt(B, 10)
        assert {name.key for name in there_of_a} <= {name_of(n).key for n in range(3)}
        assert all(after.batch_exists(there_of_a + there_of_b))
        numbers = [*range(3), FIRST_OF_B, FIRST_OF_B + 1]
        assert len(held(after, numbers)) == len(there_of_a) + len(there_of_b)
        survivors += len(there_of_b)
        tier.close()
        after.close()
        shutil.rmtree(folder)
    assert 10 < ends < 40
    assert survivors > 10


WRITER = """
import sys
from tests.server.tiers.disk.tenants import A, B, BOTH, SIZE, put
from server.tiers.disk.shared import SharedTier
tier = SharedTier(sys.argv[1], SIZE, "disk")
tier.set_quotas(BOTH)
at = 0
while True:
    put(tier, (A, B, b"")[at % 9 // 3], range(at, at + 3))
    at += 3
    print(at, flush=True)
"""


def test_sums_are_those_of_a_recount_after_a_kill(folder: Path, opened: Open) -> None:
    command = [sys.executable, "-c", WRITER, str(folder)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    while int(writer.stdout.readline() or 180) < 180:
        pass
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait(10)
    writer.stdout.close()
    tier = opened()
    tier.set_quotas(BOTH)
    assert wait_until(lambda: agreed(tier, folder, A, B))
    there = held(tier, range(600))
    expected = {
        salt: sum(number % 9 // 3 == at for number in there) * LENGTH
        for at, salt in enumerate((A, B))
    }
    assert min(expected.values()) >= 60 // 3 * LENGTH
    assert told(tier) == {**expected, FINGERPRINT: len(there) * LENGTH}


# --- several at once ------------------------------------------------------------------------


def test_threads_of_one_server_leave_exact_sums_while_it_walks(opened: Open, folder: Path) -> None:
    tier = opened(rescan_s=0.01)
    tier.set_quotas([*BOTH, Share(False, OTHER, 0, 30 * LENGTH)])
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = Random(seed)
        try:
            for _ in range(150):
                number, chance = rng.randrange(40), rng.random()
                salt, space = ((A, FINGERPRINT), (B, OTHER), (b"", OTHER))[number % 3]
                if chance < 0.6:
                    statuses = put(tier, salt, range(number, number + 1), fingerprint=space)
                    if not set(statuses) <= {Status.OK, Status.OVER}:
                        wrong.append(statuses)
                elif chance < 0.97:
                    tier.delete([name_of(number, space)])
                else:
                    tier.clear(space)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert wrong == []
    assert agreed(tier, folder, A, B), "at once, and not after another walk"


def test_three_servers_at_once_agree_on_what_is_there_after_a_walk(
    opened: Open, folder: Path
) -> None:
    quotas = [*BOTH, Share(False, OTHER, 0, 20 * LENGTH)]
    faults = [FaultyFiles() for _ in range(3)]
    tiers = [opened(files, rescan_s=0.05) for files in faults]
    wrong: list[object] = []

    def work(at: int) -> None:
        rng, tier, files = Random(at), tiers[at], faults[at]
        tier.set_quotas(quotas)
        try:
            for _ in range(120):
                number, chance = rng.randrange(60), rng.random()
                salt, space = ((A, FINGERPRINT), (B, OTHER), (b"", OTHER))[number % 3]
                if chance < 0.1:
                    files.fail(rng.choice(("rename", "set_length", "pwritev", "remove")), times=1)
                elif chance < 0.7:
                    put(tier, salt, range(number, number + 1), fingerprint=space)
                elif chance < 0.95:
                    files.heal()
                    tier.delete([name_of(number, space)])
                else:
                    files.heal()
                    tier.clear(space)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            wrong.append(error)
        files.heal()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert wrong == []
    for tier in tiers:
        assert wait_until(lambda tier=tier: agreed(tier, folder, A, B))
        assert told(tier).get(OTHER, 0) <= 20 * LENGTH
        ours = {name.key for name in tier.of_salt(A, 1000)}
        assert ours <= {name_of(number).key for number in range(0, 60, 3)}
