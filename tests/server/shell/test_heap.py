"""Figures of memory move with what is taken and freed."""

from __future__ import annotations

from server.shell.heap import Heap

MIB = 1 << 20


def test_what_is_taken_and_freed_is_seen() -> None:
    heap = Heap()
    resident, in_use = heap.resident_bytes(), heap.in_use_bytes()
    held = [bytes(b"x" * (64 << 10)) for _ in range(1024)]
    assert heap.resident_bytes() - resident > 48 * MIB
    assert heap.in_use_bytes() - in_use > 48 * MIB
    held.clear()
    assert heap.in_use_bytes() - in_use < 16 * MIB  # at once
    heap.trim()
    assert heap.resident_bytes() - resident < 16 * MIB


def test_a_library_without_figures_gets_those_of_the_kernel() -> None:
    heap = Heap()
    heap._mallinfo = None
    assert abs(heap.in_use_bytes() - heap.resident_bytes()) < 8 * MIB
