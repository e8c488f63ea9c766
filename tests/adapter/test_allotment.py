"""Pages of the host's callbacks: flat or grouped, none left, or too few for the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.allotment import groups_of, why_misfit
from adapter.requests import RequestTable
from tests.adapter.hostlike import facts, geometry, tokens


@pytest.mark.parametrize("pages", [None, (), ([],), ([], []), (None,)])
def test_no_pages_left(pages: Any) -> None:  # host contract §6: an empty outer list too
    for num_groups in (1, 2):
        assert groups_of(pages, num_groups) is None


def test_lists_keep_their_places() -> None:
    assert groups_of(([3, 1],), 1) == [[3, 1]]
    assert groups_of(([3, 1], [-1, 5]), 2) == [[3, 1], [-1, 5]]
    assert groups_of(([3], []), 2) == [[3], []]


@pytest.mark.parametrize(("pages", "num_groups"), [(([1],), 2), (([1], [2]), 1)])
def test_another_number_of_groups_is_an_error(pages: Any, num_groups: int) -> None:
    with pytest.raises(ValueError, match="layer groups"):
        groups_of(pages, num_groups)


@pytest.mark.parametrize(
    ("num_pages", "is_drafting", "fits"),
    [(5, False, False), (6, False, True), (7, False, False), (7, True, True), (99, True, False)],
)
def test_pages_must_fit_the_block_size(num_pages: int, is_drafting: bool, fits: bool) -> None:
    state = RequestTable(geometry()).admit(facts(1, tokens(22)), 1, 0.0)
    state.pages = [list(range(num_pages))]
    reason = why_misfit(state, geometry(), is_drafting)
    assert (not reason) == fits
    assert fits or f"got {num_pages} pages" in reason
