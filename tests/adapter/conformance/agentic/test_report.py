"""What the terminal shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

pytest.importorskip("torch")

from adapter.conformance.agentic import report
from tests.adapter.conformance.agentic.played import outcome

pytestmark = pytest.mark.torch


def shown(*parts: object) -> str:
    console = Console(width=120, record=True, file=None, quiet=False, highlight=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get()


def test_the_tables_hold_the_figures() -> None:
    good = outcome()
    text = shown(report.turns(good), report.figures(good), report.verdict(good))
    for part in ("3096", "2684", "0.8669", "6.545 x", "128 KiB a token", "0.9522", "14.4 x"):
        assert part in text
    assert text.count("0.733") >= 3
    assert "all as expected, in 12 s" in text


def test_a_verdict_names_some_of_many_mistakes() -> None:
    good = outcome()
    seen = [replace(one, hit_blocks=0) for one in good.first.seen]
    text = shown(report.verdict(replace(good, first=replace(good.first, seen=seen))))
    assert "request 2 hit 0, not 4" in text
    assert "more" in text
    assert text.count("\n") < 15
