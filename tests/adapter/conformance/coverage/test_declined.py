"""Each situation names a test that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.conformance.coverage.declined import DECLINED, UNPLAYED, Declined


@pytest.mark.parametrize("one", DECLINED, ids=lambda one: one.what[:30])
def test_its_test_exists(one: Declined, root: Path) -> None:
    file, _, function = one.test.partition("::")
    assert f"def {function}(" in (root / file).read_text(encoding="utf-8")
    assert one.source.startswith("§")


def test_what_is_not_played_names_its_section() -> None:
    assert all(source.startswith("§") for _, source, _ in UNPLAYED)
