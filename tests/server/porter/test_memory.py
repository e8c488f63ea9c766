"""L1 in a porter: parts lie within their extents, extents stay until nothing touches them."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from protocol.extents import RECORD_DTYPE, RECORDS_OFFSET_BYTES
from server.porter.memory import Memory
from server.porter.wire import Command, Kind
from tests.server.porter.memorytier import MemoryTier
from tests.server.porter.rows import PAGE, SPACE, key, memory, rows

SIZE = 16 * PAGE


@pytest.fixture
def setup() -> tuple[Memory, MemoryTier]:
    tier = MemoryTier()
    made = Memory(tier)
    fd, _ = memory(SIZE)
    made.map_extent(Command(Kind.MAP_EXTENT, 1, SIZE, PAGE), fd)
    os.close(fd)
    return made, tier


def test_parts_are_views_of_their_slots(setup: tuple[Memory, MemoryTier]) -> None:
    made, tier = setup
    one, two = made.parts(SPACE, rows([1, 3]))
    assert one is not None
    assert two is not None
    assert (two.name.fingerprint, two.name.key, two.name.shard) == (SPACE, key(3), 0)
    assert (two.payload_bytes, two.room.nbytes) == (PAGE - 100, PAGE)
    assert two.address - one.address == 2 * PAGE
    assert one.address - PAGE in tier.registered
    two.room[5] = 77
    one.header[0] = 1
    assert two.header[0] == 0
    [again] = made.parts(SPACE, rows([3]))
    assert again is not None
    assert again.room[5] == 77


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("extent", 2),
        ("offset", 0),
        ("offset", PAGE + 1),
        ("offset", SIZE),
        ("offset", SIZE - PAGE + 1),
        ("offset", 2**63),
        ("room", 100),
        ("room", 2 * SIZE),
        ("length", PAGE + 1),
    ],
)
def test_what_lies_elsewhere_is_no_part(
    setup: tuple[Memory, MemoryTier], field: str, value: int
) -> None:
    wrong = rows([1, 2])
    wrong[field][1] = value
    good, bad = setup[0].parts(SPACE, wrong)
    assert good is not None
    assert bad is None


def test_an_extent_stays_until_its_last_job_has_ended(setup: tuple[Memory, MemoryTier]) -> None:
    made, tier = setup
    held = [made.hold(rows([1, 2])) for _ in range(2)]
    assert held == [[1], [1]]
    made.unmap_extent(1)
    assert made.unmapped() == []
    made.release(held[0])
    assert made.unmapped() == []
    made.release(held[1])
    assert made.unmapped() == [1]
    assert made.unmapped() == []
    assert tier.registered == {}
    assert made.parts(SPACE, rows([1])) == [None]
    assert made.hold(rows([1])) == []


def test_an_unmapped_extent_gives_its_memory_back(setup: tuple[Memory, MemoryTier]) -> None:
    made, _ = setup
    fd, _ = memory(1 << 20)
    name = os.readlink(f"/proc/self/fd/{fd}")
    inode = os.fstat(fd).st_ino
    made.map_extent(Command(Kind.MAP_EXTENT, 7, 1 << 20, PAGE), fd)
    os.close(fd)
    parts = made.parts(SPACE, rows([1], extent=7))
    made.unmap_extent(7)
    assert made.unmapped() == [7]
    del parts
    gc.collect()
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    mine = [line for line in lines if f" {inode} " in line and name.split(" ")[0] in line]
    assert len(mine) == 1  # the test's own


def test_an_unknown_extent_is_gone_already(setup: tuple[Memory, MemoryTier]) -> None:
    made, tier = setup
    made.unmap_extent(99)
    assert made.unmapped() == [99]
    assert len(tier.registered) == 1


def test_what_the_tier_cannot_take_is_not_mapped() -> None:
    tier = MemoryTier()
    tier.raises = RuntimeError("no")
    made = Memory(tier)
    fd, _ = memory(SIZE)
    with pytest.raises(RuntimeError):
        made.map_extent(Command(Kind.MAP_EXTENT, 1, SIZE, PAGE), fd)
    os.close(fd)
    assert made.parts(SPACE, rows([1])) == [None]


def test_page_tables_are_filled_in_steps(setup: tuple[Memory, MemoryTier]) -> None:
    made, _ = setup
    assert made.is_cold
    made.populate_step()
    assert not made.is_cold


def test_rows_of_no_parts() -> None:
    made = Memory(MemoryTier())
    assert made.parts(SPACE, rows([])) == []
    assert made.hold(np.zeros(0, dtype=rows([]).dtype)) == []


def test_a_part_has_the_salt_of_its_slots_record() -> None:
    made = Memory(MemoryTier())
    first = 2 * PAGE
    fd, data = memory(SIZE)
    made.map_extent(Command(Kind.MAP_EXTENT, 1, SIZE, first), fd)
    os.close(fd)
    records = np.zeros(3, RECORD_DTYPE)
    records["key"] = [np.void(key(number)) for number in (1, 2, 9)]
    records["tenant"] = [np.void(salt) for salt in (b"s" * 16, bytes(16), b"t" * 16)]
    data[RECORDS_OFFSET_BYTES : RECORDS_OFFSET_BYTES + records.nbytes] = records.tobytes()
    wanted = rows([1, 2, 3])
    wanted["offset"] += PAGE
    parts = made.parts(SPACE, wanted)
    assert [part.salt for part in parts if part is not None] == [b"s" * 16, b"", b""]
