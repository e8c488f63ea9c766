"""Jobs on a tier: what it does wrong is a status, and nothing is believed unseen."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.extents import RECORD_DTYPE, RECORDS_OFFSET_BYTES
from server.core.tiers.parts import Share, Status, pack_quotas, unpack_names, unpack_shares
from server.porter import jobs
from server.porter.jobs import FIRST_CHUNKS, Performer
from server.porter.memory import Memory
from server.porter.wire import Command, Kind
from server.tiers.disk.slab import SlabTier
from server.tiers.interface import Health, Name, TierError
from tests.server.porter.memorytier import LosingTier, MemoryTier
from tests.server.porter.rows import OTHER, PAGE, SPACE, key, memory, rows

SALT = b"s" * 16
NUM_SLOTS = 200
SIZE = PAGE * (1 + NUM_SLOTS)


class Rig:
    def __init__(self) -> None:
        self.tier = MemoryTier()
        self.memory = Memory(self.tier)
        fd, self.bytes = memory(SIZE)
        self.memory.map_extent(Command(Kind.MAP_EXTENT, 1, SIZE, PAGE), fd)
        os.close(fd)
        self.bytes[:] = os.urandom(SIZE)
        self.stopping = threading.Event()
        self.moves = 0
        self.performer = Performer(self.tier, self.memory, 0, self.stopping, self._moved)

    def _moved(self) -> None:
        self.moves += 1

    def carry(self, kind: Kind, numbers: list[int], **more: int) -> bytes:
        answer = self.performer.perform(
            Command(kind, 3, fingerprint=SPACE, parts=rows(numbers, **more))
        )
        assert (answer.kind, answer.number, answer.error) == (kind, 3, None)
        return answer.statuses

    def probe(self, numbers: list[int], shards: int = 1, first: int = 0) -> int:
        keys = b"".join(map(key, numbers))
        answer = self.performer.perform(
            Command(Kind.PROBE, 4, fingerprint=SPACE, keys=keys, shards=shards, first=first)
        )
        return answer.count


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_was_put_comes_back_bit_by_bit(rig: Rig) -> None:
    before = bytes(rig.bytes)
    assert rig.carry(Kind.PUT, [1, 2, 3]) == bytes([Status.OK] * 3)
    rig.bytes[:] = bytes(SIZE)
    assert rig.carry(Kind.GET, [1, 3]) == bytes([Status.OK] * 2)
    length = PAGE - 100
    assert rig.bytes[PAGE : PAGE + length] == before[PAGE : PAGE + length]
    assert rig.bytes[3 * PAGE : 3 * PAGE + length] == before[3 * PAGE : 3 * PAGE + length]
    assert rig.bytes[2 * PAGE : 3 * PAGE] == bytes(PAGE)


def test_absent_spoilt_and_swapped_values_are_told_apart(rig: Rig) -> None:
    rig.carry(Kind.PUT, [1, 2, 3, 4])
    kept = rig.tier.kept
    one, two, three = (Name(SPACE, key(n), 0) for n in (1, 2, 3))
    kept[one], kept[two] = kept[two], kept[one]
    header, payload = kept[three]
    kept[three] = (header, payload[:-1] + bytes([payload[-1] ^ 1]))
    told = rig.carry(Kind.GET, [1, 2, 3, 4, 5])
    assert list(told) == [
        Status.CORRUPT,
        Status.CORRUPT,
        Status.CORRUPT,
        Status.OK,
        Status.ABSENT,
    ]


def test_a_value_behind_another_parent_is_not_taken(rig: Rig) -> None:
    rig.carry(Kind.PUT, [2])
    wrong = rows([2])
    wrong["parent"][0] = key(77)
    answer = rig.performer.perform(Command(Kind.GET, 1, fingerprint=SPACE, parts=wrong))
    assert list(answer.statuses) == [Status.CORRUPT]


def test_a_tier_that_says_ok_and_fills_nothing_in_is_caught(rig: Rig) -> None:
    rig.tier.statuses[key(1)] = Status.OK
    assert list(rig.carry(Kind.GET, [1])) == [Status.CORRUPT]


def test_statuses_of_the_tier_come_through(rig: Rig) -> None:
    rig.tier.statuses[key(2)] = Status.NO_ROOM
    assert list(rig.carry(Kind.PUT, [1, 2])) == [Status.OK, Status.NO_ROOM]


class _RustPanic(BaseException):
    """As bindings to Rust raise them."""


@pytest.mark.parametrize("error", [OSError(5, "EIO"), RuntimeError("password=x"), _RustPanic("x")])
def test_whatever_it_raises_is_an_error_of_the_batch(rig: Rig, error: BaseException) -> None:
    rig.tier.raises = error
    for kind in (Kind.GET, Kind.PUT):
        assert set(rig.carry(kind, [1, 2])) == {Status.ERROR}
    for kind in (Kind.PROBE, Kind.DROP, Kind.CLEAR, Kind.HEALTH):
        answer = rig.performer.perform(Command(kind, 8, fingerprint=SPACE, keys=key(1), shards=1))
        assert (answer.kind, answer.number, answer.count) == (kind, 8, 0)
        assert answer.error
        assert "password" not in answer.error


def test_what_an_engine_says_for_people_is_told(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.tier.raises = TierError("memory: its master\n is asleep")
    answer = rig.performer.perform(Command(Kind.DROP, 8, fingerprint=SPACE, keys=key(1), shards=1))
    assert answer.error == "memory: its master is asleep"
    assert set(rig.carry(Kind.PUT, [1])) == {Status.ERROR}
    assert "put: memory: its master is asleep" in caplog.messages


def test_too_few_answers_are_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.tier, "batch_get_into", lambda parts: [Status.OK])
    monkeypatch.setattr(rig.tier, "batch_put", lambda parts: [])
    monkeypatch.setattr(rig.tier, "batch_exists", lambda names: [True])
    assert set(rig.carry(Kind.GET, [1, 2])) == {Status.ERROR}
    assert set(rig.carry(Kind.PUT, [1, 2])) == {Status.ERROR}
    assert rig.probe([1, 2]) == 0


def test_parts_that_do_not_lie_in_l1_do_not_spoil_the_others(rig: Rig) -> None:
    assert list(rig.carry(Kind.PUT, [1, NUM_SLOTS + 1, 2])) == [
        Status.OK,
        Status.ERROR,
        Status.OK,
    ]
    assert set(rig.carry(Kind.GET, [1], extent=9)) == {Status.ERROR}


def test_batches_are_bounded_by_parts_and_by_bytes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.carry(Kind.PUT, list(range(1, 131)))
    assert rig.tier.calls == ["put 64", "put 64", "put 2"]
    assert rig.moves == 3
    rig.tier.calls.clear()
    monkeypatch.setattr(jobs, "BATCH_BYTES", 2 * (PAGE - 100))
    rig.carry(Kind.GET, [1, 2, 3, 4, 5])
    assert rig.tier.calls == ["get 2", "get 2", "get 1"]
    rig.tier.calls.clear()
    monkeypatch.setattr(jobs, "BATCH_BYTES", 10)
    rig.carry(Kind.GET, [1, 2])
    assert rig.tier.calls == ["get 1", "get 1"]
    assert rig.carry(Kind.GET, []) == b""


def test_a_stop_leaves_the_rest_undone(rig: Rig) -> None:
    rig.stopping.set()
    assert set(rig.carry(Kind.PUT, [1, 2])) == {Status.ERROR}
    assert rig.tier.calls == []
    assert rig.probe([1]) == 0


def test_a_probe_counts_whole_chunks_from_the_first(rig: Rig) -> None:
    for number in (1, 2, 4):
        for shard in range(2):
            rig.tier.kept[Name(SPACE, key(number), shard)] = (b"", b"")
    rig.tier.kept[Name(SPACE, key(3), 0)] = (b"", b"")
    assert rig.probe([1, 2, 3, 4], shards=2) == 2
    assert rig.probe([3], shards=2) == 0
    assert rig.probe([1, 2, 3, 4], shards=1) == 4
    assert rig.probe([1, 2, 3, 4], shards=1, first=1) == 2
    assert rig.probe([]) == 0


def test_a_probe_asks_little_first(rig: Rig) -> None:
    numbers = list(range(1, 301))
    assert rig.probe(numbers) == 0
    assert rig.tier.calls == [f"exists {FIRST_CHUNKS}"]
    for number in numbers[:200]:
        rig.tier.kept[Name(SPACE, key(number), 0)] = (b"", b"")
    rig.tier.calls.clear()
    assert rig.probe(numbers) == 200
    assert rig.tier.calls == ["exists 32", "exists 128", "exists 140"]


def test_a_touch_says_what_is_there_part_by_part(rig: Rig) -> None:
    tier = LosingTier()
    performer = Performer(tier, rig.memory, 0, rig.stopping, rig._moved)
    parts = rows([1, 2])
    performer.perform(Command(Kind.PUT, 1, fingerprint=SPACE, parts=parts))
    tier.statuses[key(9)] = Status.ERROR
    command = Command(Kind.TOUCH, 2, fingerprint=SPACE, keys=key(1) + key(3) + key(9), shards=2)
    ok, absent, error = Status.OK, Status.ABSENT, Status.ERROR
    assert list(performer.perform(command).statuses) == [ok, absent, absent, absent, error, error]
    many = Command(Kind.TOUCH, 3, fingerprint=SPACE, keys=key(1) * 100, shards=1)
    assert set(performer.perform(many).statuses) == {ok}
    assert tier.calls[-2:] == ["touch 64", "touch 36"]
    rig.stopping.set()
    assert set(performer.perform(many).statuses) == {error}
    rig.stopping.clear()
    tier.raises = TierError("asleep")
    assert performer.perform(many).error == "asleep"


def test_a_tier_that_loses_nothing_by_itself_is_not_asked(rig: Rig) -> None:
    command = Command(Kind.TOUCH, 2, fingerprint=SPACE, keys=key(1) + key(3), shards=1)
    assert list(rig.performer.perform(command).statuses) == [Status.OK, Status.OK]
    assert not rig.tier.calls


def test_forgetting(rig: Rig) -> None:
    for space in (SPACE, OTHER):
        for number in (1, 2):
            for shard in (0, 1):
                rig.tier.kept[Name(space, key(number), shard)] = (b"", b"")
    drop = Command(Kind.DROP, 1, fingerprint=SPACE, keys=key(2), shards=2)
    assert rig.performer.perform(drop).error is None
    assert len(rig.tier.kept) == 6
    assert rig.performer.perform(Command(Kind.CLEAR, 2, fingerprint=SPACE)).error is None
    assert {name.fingerprint for name in rig.tier.kept} == {OTHER}


def test_health_as_it_says(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.tier.health_now = Health(ok=True, used_bytes=5, capacity_bytes=-1)
    answer = rig.performer.perform(Command(Kind.HEALTH, 6))
    assert (answer.error, answer.used_bytes, answer.capacity_bytes) == (None, 5, 0)
    assert answer.statuses == b""
    rig.tier.health_now = Health(ok=True, shares=((OTHER, 7), (SPACE, 5)))
    answer = rig.performer.perform(Command(Kind.HEALTH, 6))
    assert list(unpack_shares(answer.statuses)[0].items()) == [(OTHER, 7), (SPACE, 5)]
    rig.tier.health_now = Health(ok=True, warning="of little use")
    answer = rig.performer.perform(Command(Kind.HEALTH, 6))
    assert (answer.error, answer.warning) == (None, "of little use")
    assert caplog.messages == ["of little use"]
    rig.tier.health_now = Health(ok=False, note="full")
    assert rig.performer.perform(Command(Kind.HEALTH, 6)).error == "full"
    rig.tier.health_now = Health(ok=False)
    assert rig.performer.perform(Command(Kind.HEALTH, 6)).error


@pytest.mark.parametrize("kind", [Kind.GET, Kind.PUT, Kind.CLEAR])
def test_a_call_that_does_not_end_is_noticed_and_one_that_forgets_has_longer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr(jobs, "CALL_S", 0.2)
    rig.tier.gate.clear()
    parts = None if kind == Kind.CLEAR else rows([1])
    command = Command(kind, 1, fingerprint=SPACE, parts=parts)
    thread = threading.Thread(target=rig.performer.perform, args=(command,))
    thread.start()
    assert not rig.performer.is_caught()
    thread.join(0.4)
    assert rig.performer.is_caught() == (kind != Kind.CLEAR)
    rig.tier.gate.set()
    thread.join(10)
    assert not rig.performer.is_caught()


def test_a_tier_may_say_that_it_moves_within_a_call() -> None:
    class Telling(MemoryTier):
        def __init__(self) -> None:
            super().__init__()
            self.moved: Callable[[], None] = lambda: None

    moves: list[None] = []
    tier = Telling()
    Performer(tier, Memory(tier), 0, threading.Event(), lambda: moves.append(None))
    tier.moved()
    assert len(moves) == 1


def slab_rig(folder: Path) -> tuple[Performer, mmap.mmap, SlabTier]:
    """A performer on a real disk tier, over an extent whose records name a salt for odd slots."""
    tier = SlabTier(str(folder), 16 << 20, "disk")
    extent = Memory(tier)
    first = 3 * PAGE  # so that there is room for records
    fd, data = memory(SIZE + 2 * PAGE)
    extent.map_extent(Command(Kind.MAP_EXTENT, 1, SIZE + 2 * PAGE, first), fd)
    os.close(fd)
    records = np.zeros(40, RECORD_DTYPE)
    records["key"] = [np.void(key(slot + 1)) for slot in range(40)]
    records["tenant"][::2] = np.void(SALT)
    data[RECORDS_OFFSET_BYTES : RECORDS_OFFSET_BYTES + records.nbytes] = records.tobytes()
    return Performer(tier, extent, 0, threading.Event(), lambda: None), data, tier


def slab_rows(numbers: list[int]) -> NDArray[np.void]:
    wanted = rows(numbers)
    wanted["offset"] += 2 * PAGE
    return wanted


def test_a_disk_is_told_quotas_at_once_and_trimmed_by_the_job(tmp_path: Path) -> None:
    performer, _, tier = slab_rig(tmp_path / "l2")
    put = Command(Kind.PUT, 1, fingerprint=SPACE, parts=slab_rows(list(range(1, 41))))
    assert set(performer.perform(put).statuses) == {Status.OK}
    most = 5 * 2 * PAGE
    quotas = Command(Kind.QUOTAS, 2, text=pack_quotas([Share(True, SALT, 0, most)]))
    performer.set_quotas(quotas)
    again = Command(Kind.PUT, 3, fingerprint=SPACE, parts=slab_rows([1]))
    assert performer.perform(again).statuses == bytes([Status.OK]), "it is there already"
    assert performer.perform(quotas).error is None
    health = performer.perform(Command(Kind.HEALTH, 4))
    assert unpack_shares(health.statuses) == ({SPACE: 25 * 2 * PAGE}, {SALT: most})
    of_salt = Command(Kind.OF_SALT, 5, fingerprint=SALT, shards=3)
    names = unpack_names(performer.perform(of_salt).statuses)
    assert len(names) == 3
    assert all(space == SPACE and shard == 0 for space, _, shard in names)
    tier.close()


def test_a_tier_that_keeps_none_says_so(rig: Rig) -> None:
    for kind in (Kind.QUOTAS, Kind.OF_SALT):
        answer = rig.performer.perform(Command(kind, 1))
        assert answer.error == "this tier does not know whose its values are"
