"""Answers are counted by operation, in the bucket that a sorted list would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import Op
from protocol.status import LATENCY_BOUNDS_US, NUM_BUCKETS
from server.shell.latency import Latency


@given(st.lists(st.integers(0, 60_000_000_000), min_size=1, max_size=200))
def test_each_answer_is_in_the_first_bucket_that_reaches_so_far(spent: list[int]) -> None:
    latency = Latency()
    for one_ns in spent:
        latency.note(int(Op.LOOKUP), one_ns)
    told = latency.told()
    assert set(told) == {"LOOKUP"}
    ends = [*(bound * 1000 for bound in LATENCY_BOUNDS_US), 1 << 62]
    expected = [0] * NUM_BUCKETS
    for one_ns in spent:
        expected[next(at for at, end in enumerate(ends) if one_ns <= end)] += 1
    assert list(told["LOOKUP"].buckets) == expected
    assert told["LOOKUP"].count == len(spent)
    assert told["LOOKUP"].sum_us == sum(spent) // 1000


def test_bounds_belong_to_their_bucket() -> None:
    latency = Latency()
    for bound_us in LATENCY_BOUNDS_US:
        latency.note(int(Op.PING), bound_us * 1000)
        latency.note(int(Op.PING), bound_us * 1000 + 1)
    buckets = latency.told()["PING"].buckets
    assert list(buckets) == [1, *[2] * (NUM_BUCKETS - 2), 1]


def test_operations_that_there_are_not_are_left_out() -> None:
    latency = Latency()
    latency.note(0, 5)
    latency.note(4_000_000_000, 5)
    assert latency.told() == {}
