"""One layer group of one request: stalls and deferrals are limited, windows are reckoned short."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.savelane import MAX_DEFERRALS, MAX_STALLS, Reach, SaveLane, Stage


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
    lane = SaveLane(0, 0, Reach(window, size, chunk))
    assert lane.is_window
    oldest = lane.oldest_chunk(next_token)
    assert oldest * size * chunk + size > next_token - window + 1  # its first page is there
    if oldest:
        assert (oldest - 1) * size * chunk + size <= next_token - window + 1


def test_full_attention_keeps_all() -> None:
    lane = SaveLane(0, 0)
    assert not lane.is_window
    assert lane.oldest_chunk(1000) == 0


def test_what_was_copied_is_known_to_the_server_before_it_is_held() -> None:
    lane = SaveLane(0, 0)
    lane.next_chunk, lane.copied = 2, 3
    known = dict.fromkeys(Stage, 0)
    for stage in Stage:
        lane.stage = stage
        known[stage] = lane.known_chunk
    assert known == {Stage.IDLE: 2, Stage.COPYING: 2, Stage.COPIED: 5, Stage.SETTLING: 5}
