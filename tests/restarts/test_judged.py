from __future__ import annotations

import pytest

from tests.restarts.figures import Tally
from tests.restarts.judged import read_broken, read_restarts
from tests.restarts.test_figures import good


def missed(tally: Tally, quick: bool = False) -> set[str]:
    figures = read_restarts(tally.document(), quick)
    return {name for name, figure in figures.items() if figure.met is False}


def test_a_full_run_is_read() -> None:
    assert missed(Tally(1, 1000, [good()] * 50)) == set()
    assert missed(Tally(1, 1000, [good()] * 49)) == {"kills"}
    assert missed(Tally(1, 1000, [good()] * 5), quick=True) == set()


def test_a_claim_that_does_not_hold_is_a_verdict() -> None:
    kills = [good()] * 49 + [good(wrong=1)]
    assert missed(Tally(1, 1000, kills, ["life 3: hangs"])) == {"no page was wrong", "no trouble"}


@pytest.mark.parametrize(("name", "met"), [("wrong", True), ("old_wrong", True), ("due", False)])
def test_a_broken_server_must_be_caught(name: str, met: bool) -> None:
    document = Tally(1, 1000, [good(**{name: 7})]).document() | {"broken": "quarantine"}
    assert read_broken(document)["wrong pages"].met is met
