"""Tenants of a slab: a flood leaves a floor alone, a limit holds, and sums outlive any end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from server.core.tiers.parts import Share, Status
from server.tiers.disk import space as spaces
from server.tiers.disk.files import BLOCK_BYTES
from server.tiers.disk.slab import SlabTier
from server.tiers.interface import Name
from tests.server.tiers.disk.rig import FINGERPRINT, MIB, OTHER, ROOM, filled, held

SIZE = 8 * MIB
SLOT = ROOM + BLOCK_BYTES
A, B = b"a" * 16, b"b" * 16
FIRST_OF_B = 1000
Open = Callable[..., SlabTier]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "l2"


@pytest.fixture
def opened(folder: Path) -> Iterator[Open]:
    tiers: list[SlabTier] = []

    def make(size: int = SIZE) -> SlabTier:
        tiers.append(SlabTier(str(folder), size, "disk"))
        return tiers[-1]

    yield make
    for tier in tiers:
        tier.close()


def put(
    tier: SlabTier, salt: bytes, numbers: range, room: int = ROOM, fingerprint: bytes = FINGERPRINT
) -> Counter[Status]:
    parts = (replace(filled(one, fingerprint, room), salt=salt) for one in numbers)
    return Counter(tier.batch_put([part])[0] for part in parts)


def bytes_of(tier: SlabTier, *salts: bytes) -> dict[bytes, int]:
    """A recount from what is there, beside what is counted."""
    counted = {salt: len(tier.of_salt(salt, 1 << 20)) * SLOT for salt in salts}
    told = dict(tier.health().salts)
    assert all(told.get(salt, counted[salt]) == counted[salt] for salt in salts)
    return counted


@pytest.mark.parametrize("floor", [0, 100])
def test_a_flood_of_ten_disks_leaves_a_tenant_its_floor(opened: Open, floor: int) -> None:
    tier = opened()
    tier.set_quotas([Share(True, A, floor * SLOT, 0)] if floor else [])
    assert put(tier, A, range(100)) == {Status.OK: 100}
    flood = 10 * SIZE // SLOT
    assert put(tier, B, range(FIRST_OF_B, FIRST_OF_B + flood)) == {Status.OK: flood}
    assert len(held(tier, range(100))) == (100 if floor else 0)
    assert tier.health().used_bytes <= SIZE


def test_a_namespaces_floor_holds_against_another_and_for_values_of_another_length(
    opened: Open,
) -> None:
    tier = opened()
    tier.set_quotas([Share(False, FINGERPRINT, 60 * SLOT, 0)])
    assert put(tier, b"", range(60)) == {Status.OK: 60}
    assert put(tier, b"", range(300, 700), fingerprint=OTHER) == {Status.OK: 400}
    assert put(tier, b"", range(700, 1100), room=3 * ROOM, fingerprint=OTHER)[Status.ERROR] == 0
    assert held(tier, range(60)) == list(range(60))


def test_who_finds_no_room_for_others_floors_is_told_so(opened: Open) -> None:
    tier = opened()
    tier.set_quotas([Share(True, A, SIZE, 0)])
    put(tier, A, range(500))
    full = len(tier.of_salt(A, 1000))
    assert put(tier, B, range(FIRST_OF_B, FIRST_OF_B + 5)) == {Status.OVER: 5}
    assert put(tier, A, range(500, 505)) == {Status.OK: 5}, "its own make room"
    assert len(tier.of_salt(A, 1000)) == full


def test_a_limit_is_never_passed_and_the_oldest_of_its_own_go(opened: Open) -> None:
    tier = opened()
    tier.set_quotas([Share(True, A, 0, 20 * SLOT)])
    put(tier, B, range(FIRST_OF_B, FIRST_OF_B + 50))
    for number in range(100):
        assert put(tier, A, range(number, number + 1)) == {Status.OK: 1}
        assert bytes_of(tier, A)[A] <= 20 * SLOT
    assert bytes_of(tier, A, B) == {A: 20 * SLOT, B: 50 * SLOT}
    assert put(tier, A, range(200, 201), room=1 * MIB) == {Status.OVER: 1}


def test_a_limit_that_is_lowered_holds_after_trim(opened: Open) -> None:
    tier = opened()
    put(tier, A, range(100))
    put(tier, b"", range(200, 250), fingerprint=OTHER)
    tier.set_quotas([Share(True, A, 0, 10 * SLOT), Share(False, OTHER, 0, 7 * SLOT)])
    assert not tier.trim()
    assert bytes_of(tier, A) == {A: 10 * SLOT}
    assert dict(tier.health().shares) == {FINGERPRINT: 10 * SLOT, OTHER: 7 * SLOT}
    assert held(tier, range(100)) != []


def test_much_is_trimmed_in_steps(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "TRIMMED", 10)
    tier = opened()
    put(tier, A, range(35))
    tier.set_quotas([Share(True, A, 0, SLOT)])
    assert [tier.trim() for _ in range(4)] == [True, True, True, False]
    assert bytes_of(tier, A) == {A: SLOT}


def test_salts_and_their_sums_are_there_after_a_restart(opened: Open) -> None:
    tier = opened()
    put(tier, A, range(30))
    put(tier, b"", range(30, 40))
    put(tier, B, range(FIRST_OF_B, FIRST_OF_B + 20), fingerprint=OTHER)
    tier.close()
    tier = opened()
    tier.set_quotas([Share(True, A, 1, 0), Share(True, B, 1, 0)])
    assert bytes_of(tier, A, B) == {A: 30 * SLOT, B: 20 * SLOT}
    assert dict(tier.health().shares) == {FINGERPRINT: 40 * SLOT, OTHER: 20 * SLOT}
    names = tier.of_salt(A, 100)
    assert {name.fingerprint for name in names} == {FINGERPRINT}
    tier.delete(names)
    assert bytes_of(tier, A, B) == {A: 0, B: 20 * SLOT}
    assert held(tier, range(40)) == list(range(30, 40))


WRITER = """
import sys
from tests.server.tiers.disk.test_slab_quotas import A, B, SIZE, put
from server.tiers.disk.slab import SlabTier
tier = SlabTier(sys.argv[1], SIZE, "disk")
for at in range(0, 900, 3):
    put(tier, (A, B, b"")[at % 9 // 3], range(at, at + 3))
    print(at, flush=True)
print("done", flush=True)
sys.stdin.read()
"""


def test_sums_are_those_of_a_recount_after_a_kill(folder: Path, opened: Open) -> None:
    command = [sys.executable, "-c", WRITER, str(folder)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdin is not None
    while writer.stdout.readline() not in ("done\n", ""):
        pass
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait(10)
    writer.stdin.close()
    writer.stdout.close()
    tier = opened()
    tier.set_quotas([Share(True, A, 1, 0), Share(True, B, 1, 0)])
    there = set(held(tier, range(900)))
    expected = {
        salt: sum(number % 9 // 3 == at for number in there) * SLOT
        for at, salt in enumerate((A, B))
    }
    assert min(expected.values()) > 50 * SLOT
    assert bytes_of(tier, A, B) == expected
    assert dict(tier.health().shares) == {FINGERPRINT: len(there) * SLOT}


def test_an_index_of_the_former_format_is_read_and_its_values_are_nobodys(
    folder: Path, opened: Open
) -> None:
    tier = opened()
    put(tier, b"", range(20))
    tier.close()
    index = folder / "index"
    with lmdb.open(str(index), lock=False) as file, file.begin(write=True) as transaction:
        transaction.put(b"format", b"kvkeep disk index 1")
        assert {len(value) for name, value in transaction.cursor() if len(name) == 36} == {20}
    tier = opened()
    assert held(tier, range(20)) == list(range(20))
    assert put(tier, A, range(20, 25)) == {Status.OK: 5}
    tier.close()
    with lmdb.open(str(index), lock=False) as file, file.begin() as transaction:
        assert transaction.get(b"format") == b"kvkeep disk index 2"
    tier = opened()
    assert [name.shard for name in tier.of_salt(A, 100)] == [0] * 5


def test_what_is_read_again_by_others_stays_its_first_tenants(opened: Open) -> None:
    tier = opened()
    put(tier, A, range(3))
    put(tier, B, range(3))
    assert bytes_of(tier, A, B) == {A: 3 * SLOT, B: 0}
    assert all(isinstance(name, Name) for name in tier.of_salt(A, 10))
