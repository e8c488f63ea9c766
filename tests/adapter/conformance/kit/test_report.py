"""Broken rules are counted and shown with what was seen."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("torch")

from rich.console import Console

from adapter.conformance.kit.bench import Target
from adapter.conformance.kit.report import document, show
from adapter.conformance.kit.rules import RULES
from adapter.conformance.kit.shim import ShimReport
from adapter.conformance.kit.verdict import broken, held

pytestmark = pytest.mark.torch

TARGET = Target("some.module", "A", "B", None)
FINDINGS = [(RULES[0], held("fine [3]")), (RULES[1], broken("offered 5"))]


def test_as_plain_values() -> None:
    result = document(TARGET, FINDINGS, ShimReport("", "no module", ()))
    assert result["broken"] == 1
    assert [rule["outcome"] for rule in result["rules"]] == ["held", "BROKEN"]
    assert result["host"]["absent_because"] == "no module"


def test_as_a_table() -> None:
    out = io.StringIO()
    show(Console(file=out, width=120), TARGET, FINDINGS, ShimReport("host", "", ("x: differs",)))
    text = out.getvalue()
    for part in ("fine [3]", "offered 5", "BROKEN", "x: differs"):
        assert part in text
