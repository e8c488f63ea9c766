"""One layer group of one request: stalls and deferrals are limited, windows are reckoned short."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.savelane import MAX_DEFERRALS, MAX_STALLS, SaveLane, Stage, reach_chunks


def test_stalls_are_limited() -> None:
    lane = SaveLane(0, 0)
    for count in range(MAX_STALLS - 1):
        lane.stall(2 + count)
        assert lane.retry_at == 3 + count
    lane.stall(9)
    assert lane.retry_at > 1 << 60


def test_deferrals_double_and_end() -> None:
    lane = SaveLane(0, 0)
    waits = []
    while lane.defer(0.0):
        waits.append(lane.not_before_s)
    assert len(waits) == MAX_DEFERRALS
    assert all(later == 2 * sooner for sooner, later in pairwise(waits))


@pytest.mark.parametrize("stage", list(Stage))
def test_start_over(stage: Stage) -> None:
    lane = SaveLane(0, 1)
    lane.next_chunk, lane.stage, lane.copied = 3, stage, 1
    lane.start_over(1, 4)
    assert (lane.stage, lane.next_chunk, lane.copied) == (Stage.IDLE, 1, 0)
    assert lane.retry_at == (0 if stage is Stage.IDLE else 5)


@given(
    window=st.integers(1, 400),
    size=st.sampled_from([4, 16, 32]),
    chunk=st.integers(1, 3),
    next_token=st.integers(0, 1000),
)
def test_what_counts_as_kept_is_in_the_window(
    window: int, size: int, chunk: int, next_token: int
) -> None:
    reach = reach_chunks(window, size, size * chunk)
    lane = SaveLane(0, 0, reach)
    assert lane.is_window
    valid = next_token // (size * chunk)  # all that a report says of the position
    for oldest in range(max(0, lane.oldest_chunk(valid)), valid):
        first_page_end = oldest * size * chunk + size
        assert first_page_end > next_token - window + 1


def test_full_attention_keeps_all() -> None:
    assert reach_chunks(0, 32, 64) == 0
    lane = SaveLane(0, 0)
    assert not lane.is_window
    assert lane.oldest_chunk(1000) == 0
