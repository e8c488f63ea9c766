"""The picture is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.conformance.agentic import curve


@pytest.mark.torch  # where the tools of development are
def test_the_curve_is_a_png_of_some_size(tmp_path: Path) -> None:
    assert curve.can_draw(), "matplotlib is among the development tools: install .[test,dev]"
    path = tmp_path / "made" / "curve.png"
    curve.draw(
        path, [("prompts saved", [0, 0.5, 0.6, 0.7]), ("all", [0, 0.6, 0.8, 0.9])], [0.5, 0.8], 2
    )
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert width > 600
    assert height > 400
    assert len(data) > 5000
