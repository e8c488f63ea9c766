"""docs/conformance.md: each rule of the kit is in its table, and each section is accounted for."""

from __future__ import annotations

import re

import pytest

from tests.repository import tree

pytest.importorskip("torch")

from adapter.conformance.kit.rules import RULES

pytestmark = pytest.mark.torch

PAGE = tree.text("docs/conformance.md")
RULES_PART, UNSEEN_PART = PAGE.split("## The rules")[1].split("## What is not a rule")


def test_the_table_is_the_kits() -> None:
    rows = re.findall(r"^\| (§[0-9.]+) \| ([^|]+) \| [^|]+ \|$", RULES_PART, re.M)
    assert rows == [(rule.source, rule.text) for rule in RULES]


@pytest.mark.parametrize(("section", "count"), [(9, 16), (12, 19)])
def test_each_rule_and_gap_is_put_to_the_test_or_has_a_reason(section: int, count: int) -> None:
    tested = {rule.source for rule in RULES}
    told = set()
    for row in re.findall(rf"^\| §{section}\.([0-9, ]+) \|", UNSEEN_PART, re.M):
        told |= {f"§{section}.{number.strip()}" for number in row.split(",")}
    every = {f"§{section}.{number}" for number in range(1, count + 1)}
    assert every <= tested | told
