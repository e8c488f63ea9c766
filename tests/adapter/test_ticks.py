"""A page that was handed out again is noticed, whatever happened in between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.ticks import PageTicks

PAGES = st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True)


@given(mine=PAGES, others=st.lists(st.lists(st.integers(0, 15), max_size=4), max_size=6))
def test_counts_the_leading_unchanged_pages(mine: list[int], others: list[list[int]]) -> None:
    ticks = PageTicks(16)
    pages = np.array(mine, dtype=np.int32)
    ticks.raise_for(pages)
    seen = ticks.of(pages)
    for handed_out in others:
        ticks.raise_for(np.array(handed_out, dtype=np.int32))
    taken = {page for pages_ in others for page in pages_}
    expected = next((at for at, page in enumerate(mine) if page in taken), len(mine))
    assert ticks.num_unchanged(pages, seen) == expected


def test_same_page_twice_in_one_iteration_counts_once() -> None:
    ticks = PageTicks(4)
    ticks.raise_for(np.array([1, 1], dtype=np.int32))
    assert ticks.of(np.array([0, 1], dtype=np.int32)).tolist() == [0, 1]


@pytest.mark.parametrize("page", [-1, 4])
def test_refuses_pages_outside_the_pool(page: int) -> None:
    with pytest.raises(IndexError, match=r"0\.\.3"):
        PageTicks(4).raise_for(np.array([page], dtype=np.int32))


def test_num_pages() -> None:
    assert PageTicks(7).num_pages == 7


def test_no_page_has_a_tick_that_no_page_has() -> None:
    ticks = PageTicks(4)
    ticks.raise_for(np.array([3], dtype=np.int32))
    assert ticks.of(np.array([-1, 3], dtype=np.int32)).tolist() == [-1, 1]
