"""What a machine lacks: versions, modules that do not import, libraries of another version."""

from __future__ import annotations

import sys

import pytest

from tests.gpu import lacking


@pytest.mark.parametrize(
    ("version", "bounds", "is_in"),
    [
        ("13.0.1", ">=12.8,<14", True),
        ("12.9", ">=12.8,<13", True),
        ("13.0", ">=12.8,<13", False),
        ("12.7.9", ">=12.8,<14", False),
        ("2.1.0rc1", ">=2.1", True),
        ("7", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, bounds: str, is_in: bool) -> None:
    assert lacking.is_within(lacking.numbers(version), bounds) is is_in


def test_what_is_there_and_imports_is_met() -> None:
    assert lacking.is_met("pyzmq>=26.2")
    assert lacking.is_met("pytest")
    assert not lacking.is_met("pyzmq>=999")
    assert not lacking.is_met("no-such-package>=1")


def test_the_compiler_counts_wherever_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lacking, "nvrtc_version", lambda: (12, 9))
    assert lacking.is_met("nvidia-cuda-nvrtc-cu12>=12.8,<13")
    assert not lacking.is_met("nvidia-cuda-nvrtc>=13,<14")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    assert not lacking.is_met("nvidia-cuda-nvrtc>=13,<14"), "it cannot be imported"
