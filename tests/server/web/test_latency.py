"""Percentiles of histograms: in a straight line within a bucket, as Prometheus counts them."""

from __future__ import annotations

import pytest

from server.web.latency import cumulative, minus, quantile_us, slow

BOUNDS = (100, 1000, 100_000, 1_000_000)


def test_nothing_was_asked() -> None:
    assert quantile_us(BOUNDS, (0, 0, 0, 0, 0), 0.99) is None


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((10, 0, 0, 0, 0), 0.5, 50.0),
        ((10, 0, 0, 0, 0), 1.0, 100.0),
        ((0, 10, 0, 0, 0), 0.5, 550.0),
        ((50, 0, 50, 0, 0), 0.5, 100.0),
        ((50, 0, 50, 0, 0), 0.75, 50_500.0),
        ((1, 0, 0, 0, 99), 0.99, 1_000_000.0),  # beyond the last bound: at least that
    ],
)
def test_quantiles(counts: tuple[int, ...], share: float, expected: float) -> None:
    assert quantile_us(BOUNDS, counts, share) == pytest.approx(expected)


def test_slow_ones_are_those_beyond_a_tenth_of_a_second() -> None:
    assert slow(BOUNDS, (1, 2, 4, 8, 16)) == 24


def test_what_came_since_is_never_negative() -> None:
    assert minus((5, 6), (1, 7)) == [4, 0]
    assert minus((5, 6), ()) == [5, 6]


def test_an_exposition_has_bounds_in_seconds_and_sums() -> None:
    assert cumulative(BOUNDS, (1, 2, 0, 4, 8)) == [
        ("0.0001", 1.0),
        ("0.001", 3.0),
        ("0.1", 3.0),
        ("1.0", 7.0),
        ("+Inf", 15.0),
    ]
