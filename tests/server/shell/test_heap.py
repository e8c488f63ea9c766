"""Figures of memory move with what is taken and freed."""

from __future__ import annotations

import gc
import subprocess
import sys

from server.shell.heap import Heap
from tests.wire.process import ROOT

MIB = 1 << 20


def test_what_is_taken_and_freed_is_seen() -> None:
    heap = Heap()
    gc.collect()
    heap.trim()  # or what other tests have freed is taken first, and nothing grows
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


def test_large_arrays_cost_what_is_touched_of_them() -> None:
    code = (
        "import numpy as np; from server.shell.heap import Heap, use_small_pages;"
        "use_small_pages(); heap = Heap(); before = heap.resident_bytes();"
        "made = [np.zeros(16 << 20, np.uint8) for _ in range(20)];"
        "[one.__setitem__(slice(8 << 20, (8 << 20) + 100), 1) for one in made];"
        "print(heap.resident_bytes() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 2 * MIB
