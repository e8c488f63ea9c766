"""What a run of the fuzzers says of its workers."""

from __future__ import annotations

import random

from tests.fuzz.workers import Total

MIB = 1 << 20


def total(leak_bytes: int) -> Total:
    draw = random.Random(7)
    rows = [200 * MIB + draw.randrange(60 * MIB) + number * leak_bytes for number in range(250)]
    return Total(memory={1: rows, 2: [MIB] * 250})


def test_what_a_worker_needs_now_and_then_is_no_growth() -> None:
    assert total(0).growth_bytes() < 12 * MIB


def test_what_leaks_by_piece_is() -> None:
    assert total(200_000).growth_bytes() > 20 * MIB


def test_a_short_run_tells_what_it_can() -> None:
    assert Total().growth_bytes() == 0
    assert Total(memory={1: [5]}).growth_bytes() == 0
    assert Total(memory={1: [5, 9]}).growth_bytes() == 0
    assert Total(memory={1: [5, 9, 11]}).growth_bytes() == 2
