"""The line through samples, and the files of an arena."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.lookout import files_of, is_in_order, slope


def test_the_line_that_fits_best() -> None:
    assert slope([(0.0, 5), (1.0, 7), (2.0, 9)]) == pytest.approx(2)
    assert slope([(0.0, 4), (1.0, 6), (2.0, 4)]) == pytest.approx(0)
    assert slope([(10.0, 8), (20.0, 3)]) == pytest.approx(-0.5)


def test_tokens_are_in_order() -> None:
    told = {"requested_tokens": 96, "hit_tokens_l1": 32, "hit_tokens_disk": 32, "loaded_tokens": 64}
    assert is_in_order(told)
    assert is_in_order({})
    assert not is_in_order({**told, "loaded_tokens": 65})
    assert not is_in_order({**told, "hit_tokens_disk": 65})


def test_files_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "b").write_bytes(b"")
    (tmp_path / "a").write_bytes(b"")
    assert files_of(tmp_path) == ["a", "x/b"]
    assert files_of(tmp_path / "none") == []
