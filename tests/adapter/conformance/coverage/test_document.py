"""docs/trtllm.md is what the table says."""

from __future__ import annotations

from pathlib import Path

from adapter.conformance.coverage.combine import combinations
from adapter.conformance.coverage.document import render
from adapter.conformance.coverage.refused import REFUSED


def test_the_page_is_generated_from_the_table(root: Path) -> None:
    written = (root / "docs" / "trtllm.md").read_text(encoding="utf-8")
    assert written == render(), "run: python -m adapter.conformance.coverage --write docs/trtllm.md"


def test_the_page_names_every_combination_and_refusal() -> None:
    page = render()
    assert all(f"`{one.test_id}`" in page for one in combinations())
    assert all(case.test in page for case in REFUSED)
