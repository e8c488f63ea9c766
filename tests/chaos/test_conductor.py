"""What is left in an arena's folder without a reason is named and counted."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.chaos.conductor import files_left, num_parties, ratio

pytestmark = pytest.mark.torch
NAMES = ["00000001.extent", "00000003.extent", "arena", "lock", "namespaces/0a", "parties/0b"]


def test_files_with_a_reason_are_no_leak() -> None:
    assert num_parties(NAMES) == 1
    assert files_left(NAMES, 2, 1) == {}


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ("00000009.extent", {"extent files": 1}),
        ("parties/0c", {"party files": 1}),
        ("parties/0c.tmp", {"party files": 1, "file parties/0c.tmp": 1}),
        ("core", {"file core": 1}),
    ],
)
def test_others_are(more: str, left: dict[str, int]) -> None:
    assert files_left([*NAMES, more], 2, 1) == left
    assert files_left(NAMES, 3, 1) == {"extent files": -1}


def test_ratios() -> None:
    assert (ratio(1, 3), ratio(1, 0)) == (0.3333, 0.0)
