"""Tables and numbers for people."""

from __future__ import annotations

import pytest

from server.cli.tables import Column, plain, share, span, table, unforgotten

COLUMNS = [Column("name", can_shrink=True), Column("chunks", is_number=True)]


def test_columns_line_up_and_nothing_is_markup() -> None:
    shown = table(COLUMNS, [["[red]a[/]", "1"], ["b", "12,345"]])
    lines = shown.splitlines()
    assert lines[0].split() == ["name", "chunks"]
    assert lines[2].split() == ["[red]a[/]", "1"]
    assert lines[3].endswith("12,345")
    assert len(lines[2]) == len(lines[3])


def test_what_does_not_fit_is_cut_in_the_column_that_can_shrink() -> None:
    shown = table(COLUMNS, [["x" * 100, "12,345"]], columns_wide=40)
    assert all(len(line) <= 40 for line in shown.splitlines())
    assert "12,345" in shown
    assert "…" in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m 0s"),
        (11_520, "3h 12m"),
        (86_400, "1d 0h"),
        (1e9, "11574d 1h"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_shares() -> None:
    assert share(1, 3) == "33.3 %"
    assert share(0, 0) == "-"


def test_a_terminal_is_told_nothing_by_a_name() -> None:
    assert plain("a\x1b[2Jb\n") == "a?[2Jb?"


def test_tiers_that_still_have_what_was_deleted_are_counted_in_words() -> None:
    assert unforgotten(1) == "1 tier has not forgotten yet"
    assert unforgotten(2) == "2 tiers have not forgotten yet"
