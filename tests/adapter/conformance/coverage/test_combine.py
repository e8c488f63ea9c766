"""The generated combinations cover what is legal, and nothing else."""

from __future__ import annotations

import pytest

from adapter.conformance.coverage.combine import (
    all_pairs,
    combinations,
    legal_combinations,
    legal_pairs,
    pairs_of,
    sample,
    why_illegal,
)
from adapter.conformance.coverage.dimensions import DIMENSIONS
from adapter.conformance.coverage.rules import is_legal


def test_every_legal_pair_is_covered_by_a_legal_combination() -> None:
    chosen = combinations()
    assert all(is_legal(one) for one in chosen)
    covered = frozenset().union(*(pairs_of(one) for one in chosen))
    assert covered == legal_pairs()
    assert len({one.test_id for one in chosen}) == len(chosen)


def test_every_other_pair_is_forbidden_by_a_line_of_the_contract() -> None:
    for pair in set(all_pairs()) - legal_pairs():
        assert "§" in why_illegal(pair).source


def test_a_legal_pair_has_no_reason_against_it() -> None:
    with pytest.raises(LookupError):
        why_illegal(("epoch", "E1", "lifecycle", "plain"))


def test_the_choice_is_the_same_each_time_and_small() -> None:
    again = combinations.__wrapped__()
    assert again == combinations()
    assert len(again) < len(legal_combinations()) / 20


def test_the_sample_holds_each_value_but_four_ranks() -> None:
    few = sample()
    assert set(few) < set(combinations())
    assert len(few) < len(combinations()) / 5
    held = {(name, value) for one in few for name, value in vars(one).items()}
    every = {(dimension.name, name) for dimension in DIMENSIONS for name in dimension.names}
    assert every - held == {("ranks", "tp4")}
    assert sum(one.ranks != "1" for one in few) == 2
