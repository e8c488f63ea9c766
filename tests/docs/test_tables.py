"""Tables of the documents are tables for their readers: a head, and rows as wide as it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.spans import FENCE
from tests.repository import tree


def cells(line: str) -> int:
    """Count the bars of a row, but for those within code and those that are written `\\|`."""
    return len(re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line)))


def faults(text: str) -> Iterator[str]:
    wanted = 0
    previous = ""
    lines = FENCE.sub("", text).splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|"):
            if not previous.startswith("|"):
                wanted = cells(line)
                if not re.fullmatch(r"\|[ :|-]+\|", following):
                    yield f"no head: {line[:60]}"
            elif cells(line) != wanted:
                yield f"{cells(line)} bars, not {wanted}: {line[:60]}"
        previous = line


@pytest.mark.parametrize("page", list(tree.files(suffix=".md")), ids=str)
def test_tables_have_heads_and_even_rows(page: Path) -> None:
    assert list(faults(tree.text(page))) == []


@pytest.mark.parametrize(
    "text", ["| a | b |\n| --- | --- |\n| c |", "| a | b |\n\n| c | d |\n|--|--|", "| a |"]
)
def test_a_broken_table_is_noticed(text: str) -> None:
    assert list(faults(text)) != []
