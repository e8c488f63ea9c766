"""What counts as a change: more than turns without differ among themselves, and than a tenth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.bench.figures import Figure
from server.bench.noise import WHICH, Turn, figures, noise

TURN = Turn(
    lookup_p50_ms=0.5,
    lookup_p99_ms=1.0,
    echo_p50_ms=0.3,
    store_ratio=0.9,
    retrieve_ratio=0.9,
    loop_share=0.1,
)


def judged(without: list[Turn], scraped: list[Turn]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures(without, scraped)}


def test_equal_turns_change_nothing() -> None:
    found = judged([TURN] * 4, [TURN] * 4)
    verdicts = [figure.met for figure in found.values() if figure.met is not None]
    assert verdicts == [True] * len(WHICH)
    assert found["store_ratio_scraped_by_without"].value == 1
    assert found["lookup_p50_ms"].value == 0.5


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"lookup_p50_ms": 0.56}, ["lookup_p50"]),
        ({"lookup_p50_ms": 0.54}, []),
        ({"lookup_p50_ms": 0.1, "store_ratio": 1.5}, []),
        ({"store_ratio": 0.8, "retrieve_ratio": 0.8}, ["retrieve_ratio", "store_ratio"]),
        ({"lookup_p99_ms": 2.0}, ["lookup_p99"]),
    ],
)
def test_what_becomes_worse_by_more_than_a_tenth_is_missed(
    changed: dict[str, float], missed: list[str]
) -> None:
    found = judged([TURN] * 4, [replace(TURN, **changed)] * 4)
    wrong = sorted(name for name, figure in found.items() if figure.met is False)
    assert wrong == [f"{name}_scraped_by_without" for name in missed]


def test_a_restless_machine_has_more_room() -> None:
    without = [replace(TURN, lookup_p50_ms=ms) for ms in (0.4, 0.5, 0.6, 0.7)]
    scraped = [replace(turn, lookup_p50_ms=turn.lookup_p50_ms * 1.2) for turn in without]
    found = judged(without, scraped)["lookup_p50_scraped_by_without"]
    assert found.value == pytest.approx(1.2)
    assert (found.met, found.target) == (True, "≤ 1.27")
    assert "27%" in found.beside


def test_pairs_are_compared_and_not_sums() -> None:
    drifting = [replace(TURN, lookup_p50_ms=0.5 * 2**number) for number in range(4)]
    found = judged(drifting, drifting)["lookup_p50_scraped_by_without"]
    assert (found.value, found.met) == (1, True)


def test_noise() -> None:
    assert noise([1.0]) == 0
    assert noise([2.0, 2.0, 2.0]) == 0
    assert noise([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
