"""docs/observability.md says what is served: its paths, checks, metrics, alerts and files."""

from __future__ import annotations

import re

import pytest

from protocol.figures import TIER_FIGURES, find
from server.web import health
from server.web.exposition import exposed
from server.web.names import PREFIX, place
from tests.deploy.observability.expressions import rules
from tests.repository import tree
from tests.server.web.answers import status, view

TEXT = tree.text("docs/observability.md")


def section(title: str) -> str:
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    assert found is not None, title
    return found[1]


def test_each_check_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section("Health"), re.M)
    assert rows == list(health.CHECKS)


def test_each_alert_has_its_row() -> None:
    assert re.findall(r"^\| `(\w+)` \|", section("Alerts"), re.M) == list(rules())


def test_names_that_differ_are_told_as_they_are() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| `(kvkeep_[^`]+)`", section("Metrics"), re.M)
    assert len(rows) >= 8
    for name, told in rows:
        placed = place(name)
        assert placed is not None, name
        suffix = "_total" if placed.is_counter else ""
        labels = f'{{{placed.label}="{placed.value}"}}' if placed.label else ""
        assert told == f"{placed.family}{suffix}{labels}", name


@pytest.mark.parametrize("name", ["hit_chunks", "chunks"])
def test_the_rule_for_all_others_holds(name: str) -> None:
    placed, found = place(name), find(name)
    assert placed is not None
    assert found is not None
    told = placed.family + ("_total" if placed.is_counter else "")
    assert f"`{name}` is `{told}`" in " ".join(TEXT.split())


def test_metrics_beyond_stats_are_all_named_and_no_other() -> None:
    content = exposed(view({}, status()), "")[1].decode()
    told = set(re.findall(r"^# HELP kvkeep_(\w+) ", content, re.M))
    beyond = {name for name in told if find(name.removesuffix("_total")) is None}
    beyond -= {
        name
        for name in beyond
        if name.startswith(("complaints_", "errors_", "miss_chunks_", "hit_tokens_"))
    }
    of_tiers = [place(f"tier_x_{end}") for end in TIER_FIGURES]
    beyond -= {
        one.family.removeprefix(PREFIX) + ("_total" if one.is_counter else "")
        for one in of_tiers
        if one is not None
    }
    beyond -= {"loop_long_bursts_total"}
    table = section("Metrics").partition("A name of [STATS]")[0]
    named = set(re.findall(r"`kvkeep_(\w+)(?:\{[^}]*\})?`", table))
    for family, columns in re.findall(r"`kvkeep_(\w+)_…\{[^}]*\}`[^|]*\|([^\n]*)", table):
        own = columns.partition("`kvkeep_")[0]
        named |= {f"{family}_{column}" for column in re.findall(r"`(\w+)`", own)}
    assert named ^ beyond == set()


def test_files_that_are_named_are_there() -> None:
    for path in re.findall(r"`(deploy/[\w./-]+)`", TEXT):
        assert (tree.ROOT / path).is_file(), path
