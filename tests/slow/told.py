"""What tests print of their measurements, as figures: a dictionary by its names, else a line.

Knows pytest's JUnit reports, written with ``junit_logging=system-out``. Pure but for reading it.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from tests.slow.figure import Figure

MOST_LINES: Final = 60
"""Of one test: the first ones."""

MOST_LETTERS: Final = 300


def read_told(report: Path) -> dict[str, Figure]:
    """Everything that the tests of a report printed.

    Args:
        report: JUnit XML.

    Returns:
        By the test's name and, of a dictionary, the words before it and the key; of any other line
        its number.
    """
    figures: dict[str, Figure] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        text = case.findtext("system-out") or ""
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not _is_heading(line)]
        for number, line in enumerate(lines[:MOST_LINES], start=1):
            for name, value in _named(line, number).items():
                figures[f"{case.get('name')}: {name}"] = Figure(value)
    return figures


def _is_heading(line: str) -> bool:
    """Whether pytest wrote it between what was printed when."""
    return line.startswith("---") and line.endswith("---")


def _named(line: str, number: int) -> dict[str, Any]:
    before, brace, after = line.partition("{")
    try:
        values = ast.literal_eval(brace + after) if brace else None
    except (SyntaxError, ValueError):
        values = None
    if not isinstance(values, dict):
        return {f"said {number}": line[:MOST_LETTERS]}
    words = before.strip(" :")
    return {
        f"{words} {name}".strip(): value if isinstance(value, (bool, int, float)) else str(value)
        for name, value in values.items()
    }
