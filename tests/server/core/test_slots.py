"""Slot numbers: runs that come and go, pins, descriptors; two slot sizes in one arena."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.layout import unpack_slots
from server.core.integrity import IntegrityError
from server.core.slots import FREE, HELD, NO_NODE, SlotTable


class SlotMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable()
        self.runs: dict[int, tuple[int, int]] = {}
        self.pins: dict[int, int] = {}
        self.next = 1

    @rule(num_slots=st.sampled_from([1, 3, 100, 700, 1500]))
    def add(self, num_slots: int) -> None:
        base = self.table.add_extent(self.next, num_slots)
        for other, length in self.runs.values():
            assert base + num_slots <= other or other + length <= base
        self.runs[self.next] = (base, num_slots)
        self.next += 1

    @rule(number=st.integers(0, 99))
    def remove(self, number: int) -> None:
        if self.runs:
            extent = sorted(self.runs)[number % len(self.runs)]
            base, length = self.runs[extent]
            if not any(base <= slot < base + length for slot in self.pins):
                self.table.remove_extent(base, length)
                del self.runs[extent]

    @rule(number=st.integers(0, 99), readers=st.integers(1, 3))
    def pin(self, number: int, readers: int) -> None:
        if self.runs:
            base, length = self.runs[sorted(self.runs)[number % len(self.runs)]]
            slots = np.arange(base, base + min(length, 5))
            self.table.state[slots] = HELD
            fresh = [slot for slot in slots.tolist() if slot not in self.pins]
            self.table.generation[fresh] = np.array(fresh, dtype=np.uint64) + np.uint64(1)
            self.table.pin(slots, readers)
            for slot in slots.tolist():
                self.pins[slot] = self.pins.get(slot, 0) + readers

    @rule(number=st.integers(0, 99))
    def unpin(self, number: int) -> None:
        slots = sorted(self.pins)[: number % 7]
        idle = self.table.unpin(np.array(slots, dtype=np.int64)).tolist()
        for slot in slots:
            self.pins[slot] -= 1
        assert idle == [slot for slot in slots if not self.pins[slot]]
        for slot in idle:
            del self.pins[slot]
            self.table.state_of[slot] = FREE

    @invariant()
    def all_is_tiled(self) -> None:
        self.table.check()
        for slot, pins in self.pins.items():
            assert self.table.pins_of[slot] == pins
        for extent, (base, length) in self.runs.items():
            assert self.table.extent_of[base] == self.table.extent_of[base + length - 1] == extent
            assert self.table.local[base + length - 1] == length - 1


TestSlots = SlotMachine.TestCase


@given(st.lists(st.sampled_from([7, 64, 129]), min_size=1, max_size=40))
def test_runs_are_used_again(sizes: list[int]) -> None:
    table = SlotTable()
    for round_ in range(4):
        bases = [(table.add_extent(number + 1, size), size) for number, size in enumerate(sizes)]
        high = max(base + size for base, size in bases)
        assert high <= max(1024, 2 * sum(sizes)), round_
        for base, size in bases:
            table.remove_extent(base, size)
    table.check()


def test_descriptors_name_extent_index_and_generation() -> None:
    table = SlotTable()
    table.add_extent(7, 3)
    base = table.add_extent(9, 4)
    table.generation[base + 2] = 11
    blob = table.descriptors(np.array([[base + 2], [-1]], dtype=np.int32))
    rows = unpack_slots(blob, 2, 1)
    assert rows[0, 0].tolist() == (9, 2, 11)
    assert rows[1, 0].tolist() == (0, 0, 0)


def test_a_used_extent_cannot_be_removed() -> None:
    table = SlotTable()
    base = table.add_extent(1, 2)
    table.state_of[base] = HELD
    with pytest.raises(IntegrityError, match="no used slot"):
        table.remove_extent(base, 2)


def test_the_check_sees_what_is_wrong() -> None:
    table = SlotTable()
    base = table.add_extent(1, 2)
    table.pins_of[base] = 1
    with pytest.raises(IntegrityError, match="free slot has no pins"):
        table.check()


def test_memory_for_all_that_can_come_is_asked_for_once() -> None:
    table = SlotTable(room=50_000)
    before = table.generation.base
    base = table.add_extent(1, 10_000)
    assert table.generation.base is before  # nothing was copied
    assert table.state.size < 50_000  # and nobody looks at what is not there yet
    assert table.node_of[base + 9_999] == NO_NODE
    table.generation[base] = 7
    table.add_extent(2, 100_000)
    assert table.generation[base] == 7
    table.check()
