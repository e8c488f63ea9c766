"""Reports of requests that were promised something, or are said to have been."""

from __future__ import annotations

import pytest

from adapter.requests import EXPIRE_ITERATIONS, EXPIRE_S
from tests.adapter.hostlike import Output, geometry, offer
from tests.adapter.test_reports import PROMPT, build, first, later, pages_of, table_with


@pytest.mark.parametrize(
    ("parts", "is_counted"),
    [
        ([(0, 21), (21, 1)], False),  # the whole prompt is computed
        ([(0, 8), (8, 0), (8, 13), (21, 1)], False),  # in parts, one of them skipped
        ([(0, 9)], True),  # the rest of the prompt behind what is counted
        ([(0, 4), (16, 4)], True),  # the next part begins behind it
    ],
)
def test_doubted_tokens_fail_once_a_report_counts_them(
    parts: list[tuple[int, int]], is_counted: bool
) -> None:
    table, state = table_with()
    state.doubted = 12
    outputs = [first(*parts[0]), *(later([], [], *part) for part in parts[1:])]
    failures = [build(table, output, at).failure for at, output in enumerate(outputs, 1)]
    assert ("12 tokens are counted as loaded" in failures.pop()) is is_counted
    assert not any(failures)


def test_a_promise_that_was_given_up_is_a_failed_load_when_its_request_comes_after_all() -> None:
    table, state = table_with()
    state.offer, state.allocated = offer(geometry(), 0, 20), True
    late = 1 + 10 * EXPIRE_ITERATIONS
    table.expire(late, 10 * EXPIRE_S)
    assert table.find(1) is None
    assert "20 tokens were promised, and given up" in build(table, first(0, 1), late).failure
    assert build(table, first(0, 1), late + 1).failure == ""  # another one of that id


@pytest.mark.parametrize(("matched", "new"), [(0, [10, 11, 12]), (6, [11, 12]), (8, [12])])
def test_pages_of_a_parked_request_change_hands_from_the_first_that_is_not_matched_whole(
    matched: int, new: list[int]
) -> None:
    """The page of a block that is matched in part is the request's own, and is written."""
    table, state = table_with(prompt=PROMPT[:12])
    state.pages, state.allocated, state.matched_tokens = [[10, 11, 12]], True, matched
    assert pages_of(build(table, Output()).new_pages) == new
    assert build(table, Output(), 2).new_pages == ()
