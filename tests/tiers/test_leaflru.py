"""The count is right where it can be done by hand."""

from __future__ import annotations

from tests.tiers.leaflru import hits


def test_nothing_is_evicted_where_there_is_room() -> None:
    assert hits([("abc", 3), ("abd", 3), ("abc", 2), ("x", 1)], 5) == [0, 2, 2, 0]


def test_the_oldest_leaf_goes_first_and_parents_outlive_children() -> None:
    assert hits([("abc", 3), ("xy", 2), ("abc", 3)], 4) == [0, 0, 2], "c went, its parents did not"
    assert hits([("abcd", 4), ("x", 1), ("abcd", 4)], 4) == [0, 0, 3]


def test_what_a_request_touches_is_not_evicted_for_it() -> None:
    assert hits([("abcde", 5), ("abcde", 5)], 3) == [0, 3]


def test_a_touch_counts_for_the_whole_path() -> None:
    requests = [("ab", 2), ("xy", 2), ("ab", 2), ("pq", 2), ("ab", 2), ("xy", 2)]
    assert hits(requests, 4) == [0, 0, 2, 0, 2, 0]
