"""The histogram against sorted lists, and CPU against waiting."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.shell.bursts import LEAST_NS, TARGET_US, Bursts


@given(st.lists(st.integers(0, 4_000_000_000), min_size=1, max_size=300), st.floats(0.01, 1))
def test_percentiles_are_those_of_a_sorted_list(spent: list[int], share: float) -> None:
    bursts = Bursts()
    for one_ns in spent:
        bursts.note(one_ns)
    true_us = sorted(spent)[max(0, math.ceil(len(spent) * share) - 1)] / 1000
    found_us = bursts.percentile_us(share)
    assert true_us - 1 <= found_us <= max(true_us, 1.024) * 1.13 + 1
    assert bursts.count == len(spent)
    assert bursts.counts()["loop_burst_max_us"] == max(spent) // 1000
    assert bursts.over == sum(one_ns > TARGET_US * 1000 for one_ns in spent)


def test_without_bursts_there_is_no_length() -> None:
    assert Bursts().counts() == {
        "loop_bursts": 0,
        "loop_bursts_over_300_us": 0,
        "loop_burst_p50_us": 0,
        "loop_burst_p99_us": 0,
        "loop_burst_max_us": 0,
    }


def test_what_counts_is_cpu() -> None:
    bursts = Bursts()
    bursts.begin()
    time.sleep(0.05)
    bursts.end()
    assert bursts.longest_ns < 20_000_000
    before = bursts.count
    until_ns = time.thread_time_ns() + 30_000_000
    while time.thread_time_ns() < until_ns:
        pass
    bursts.end()  # begun by the end before it
    assert bursts.longest_ns >= 30_000_000
    assert bursts.count == before + 1


def test_a_turn_without_anything_to_do_is_no_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0, LEAST_NS - 1, 2 * LEAST_NS, 2 * LEAST_NS + 5])
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(times))
    bursts = Bursts()
    bursts.begin()
    for _ in range(3):
        bursts.end()
    assert (bursts.count, bursts.longest_ns) == (1, LEAST_NS + 1)
