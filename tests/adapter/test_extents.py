"""The table of mapped extents: epochs, users, taking back."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from adapter.extents import ExtentTable, MappedExtent
from protocol.ids import ArenaId, Epoch
from tests.adapter.responder import ExtentFile, geometry, namespace

OLD, NEW = Epoch(b"o" * 16), Epoch(b"n" * 16)
ARENA = ArenaId(b"a" * 16)


def mapped(number: int, epoch: Epoch = NEW, seed: int = 0) -> tuple[MappedExtent, ExtentFile]:
    file = ExtentFile(geometry(number, namespace()), ARENA, seed)
    mapping = mmap.mmap(file.fd, file.geometry.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
    return MappedExtent(epoch, file.geometry, mapping), file


def test_extent_shows_the_files_bytes_and_generations_and_cannot_be_written() -> None:
    extent, file = mapped(1)
    start = file.geometry.slot_offset_bytes(2)
    payload = extent.view[start : start + file.geometry.payload_bytes]
    assert np.array_equal(payload, file.payloads[2])
    assert [extent.generation_of(slot) for slot in range(4)] == [1, 2, 3, 4]
    file.set_generation(2, 99)
    assert extent.generation_of(2) == 99
    with pytest.raises(IndexError, match=r"0\.\.3"):
        extent.generation_of(4)
    with pytest.raises(ValueError, match="read-only"):
        extent.view[0] = 1
    del payload
    assert extent.close()
    assert extent.close()
    file.close()


def test_extents_of_two_servers_with_one_id_are_two() -> None:
    table = ExtentTable(lambda: None)
    old, old_file = mapped(1, OLD)
    new, new_file = mapped(1, NEW)
    table.add(old)
    table.add(new)
    assert table.get(1) is None
    table.set_current(NEW)
    assert table.get(1) is new
    assert table.get(1, OLD) is old
    assert table.get(2) is None
    table.retire(OLD)
    assert table.get(1, OLD) is None
    assert table.get(1) is new
    assert table.idle_taken() == [old]
    table.remove(old)
    assert len(table) == 1
    assert table.take_all() == 1
    assert table.get(1) is None
    old_file.close()
    new_file.close()


def test_a_taken_extent_stays_until_its_last_user_is_gone() -> None:
    idle: list[int] = []
    table = ExtentTable(lambda: idle.append(1))
    extent, file = mapped(1)
    table.add(extent)
    with table.hold(NEW, [1, 2]) as first, table.hold(NEW, [1]):
        assert first == {1: extent}
        assert table.take(NEW, 1)
        assert table.idle_taken() == []
        with table.hold(NEW, [1]) as late:
            assert late == {}
        assert idle == []
    assert idle == [1]
    assert table.idle_taken() == [extent]
    assert table.knows(NEW, 1)
    assert not table.take(NEW, 7)
    file.close()


def test_hold_gives_back_when_the_user_fails() -> None:
    table = ExtentTable(lambda: None)
    extent, file = mapped(1)
    table.add(extent)
    with pytest.raises(RuntimeError, match="load"), table.hold(NEW, [1]):
        raise RuntimeError("load")
    assert extent.num_users == 0
    file.close()


def test_close_waits_for_arrays_that_somebody_keeps() -> None:
    extent, file = mapped(1)
    kept = extent.view[:10]
    assert not extent.close()
    assert extent.view.size == 0
    assert kept[0] == ord("K")
    del kept
    assert extent.close()
    file.close()


def test_a_retired_server_s_extents_are_barred_those_mapped_later_too() -> None:
    table = ExtentTable(lambda: None)
    epochs = [Epoch(bytes([number]) * 16) for number in range(3)]
    made = [mapped(1, epoch) for epoch in epochs]
    for extent, _ in made[1:]:
        table.add(extent)
    table.set_current(epochs[2])
    table.retire(epochs[0])
    table.retire(epochs[1])
    table.add(made[0][0])
    assert [table.get(1, epoch) is not None for epoch in epochs] == [False, False, True]
    assert [table.has(epoch) for epoch in epochs] == [True] * 3
    assert [table.is_retired(epoch) for epoch in epochs] == [True, True, False]
    table.set_current(epochs[1])  # taken in again
    assert not table.is_retired(epochs[1])
    for extent, file in made:
        assert extent.close()
        table.remove(extent)
        file.close()
    assert not any(table.has(epoch) for epoch in epochs)


def test_what_is_held_is_used() -> None:
    table = ExtentTable(lambda: None)
    (extent, file), other = mapped(1, NEW), Epoch(b"x" * 16)
    table.add(extent)
    assert not table.is_used(NEW)
    with table.hold(NEW, [1]):
        assert table.is_used(NEW)
        assert not table.is_used(other)
    assert not table.is_used(NEW)
    assert extent.close()
    file.close()
