"""Single lines of the table, restated by hand."""

from __future__ import annotations

import pytest

from adapter.conformance.coverage.dimensions import DIMENSIONS, Combination
from adapter.conformance.coverage.rules import RULES, broken_by, is_legal


@pytest.mark.parametrize(
    ("values", "legal"),
    [
        (("E1", "plain", "v1", "sync", "tp4"), True),
        (("E2", "plain", "v2_one", "sync", "1"), False),
        (("E3", "plain", "v2_one", "async", "adp2"), True),
        (("E3", "plain", "v2_one", "async", "tp2"), False),
        (("E4", "plain", "v1", "async", "tp2"), True),
        (("E3", "replayed", "v1", "sync", "1"), False),
        (("E4", "replayed", "v2_window", "layerwise", "1"), True),
        (("E2", "drafts", "v1_mla", "sync", "1"), True),
        (("E1", "drafts", "v1", "sync", "1"), False),
    ],
)
def test_what_a_host_can_be(values: tuple[str, ...], legal: bool) -> None:
    assert is_legal(Combination(*values)) is legal


def test_rules_name_values_that_exist() -> None:
    names = {dimension.name: set(dimension.names) for dimension in DIMENSIONS}
    for rule in RULES:
        for dimension, those in rule.when.items():
            assert set(those) <= names[dimension]


def test_values_that_are_not_told_break_no_rule() -> None:
    assert broken_by({"epoch": "E1"}) is None
