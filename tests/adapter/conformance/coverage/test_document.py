"""docs/trtllm.md is what the table says."""

from __future__ import annotations

from pathlib import Path

from adapter.conformance.coverage.combine import combinations
from adapter.conformance.coverage.dimensions import DEVICE
from adapter.conformance.coverage.document import render
from adapter.conformance.coverage.refused import REFUSED
from adapter.conformance.coverage.variants import VARIANTS


def test_the_page_is_generated_from_the_table(root: Path) -> None:
    written = (root / "docs" / "trtllm.md").read_text(encoding="utf-8")
    assert written == render(), "run: python -m adapter.conformance.coverage --write docs/trtllm.md"


def test_the_page_names_every_combination_and_refusal() -> None:
    page = render()
    assert all(f"`{one.test_id}`" in page for one in combinations())
    assert all(case.test in page for case in REFUSED)
    assert all(f"| {one.name} | {one.meaning} | {one.source} |" in page for one in VARIANTS)


def test_the_page_says_what_is_played_on_which_device(root: Path) -> None:
    page = render()
    part = page[page.index("## Devices") : page.index("## Refused")]
    assert all(f"| `{value.name}` | {value.meaning} |" in part for value in DEVICE.values)
    (file,) = {one.device_test_file for one in combinations()}
    assert f"`{file}`" in part
    assert "def test_combination(" in (root / file).read_text(encoding="utf-8")
