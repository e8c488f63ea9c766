"""The command shows the page, or writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.conformance.coverage.__main__ import main
from adapter.conformance.coverage.document import render


def test_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == render()


def test_written(tmp_path: Path) -> None:
    assert main(["--write", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == render()
