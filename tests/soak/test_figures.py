"""Slopes and verdicts of made-up samples."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.soak.figures import Latencies, Minute, Sample, slope_per_min, verdicts, warm


def samples(slope_mib_per_min: float, minutes: float, descriptors: int = 50) -> list[Sample]:
    chance = random.Random(1)
    return [
        Sample(at, 60 + slope_mib_per_min * at / 60 + chance.uniform(-0.5, 0.5), descriptors)
        for at in range(int(60 * minutes))
    ]


def minute(**counts: int) -> Minute:
    good = {"lookups": 1000, "loaded_pages": 1000, "missed_pages": 9000}
    return Minute(Counter({**good, **counts}))


def failed(run: list[Sample], *minutes: Minute) -> set[str]:
    seconds = run[-1].at_s + 1
    claims = verdicts(run, minutes or [minute()], seconds)
    return {claim for claim, held in claims.items() if not held}


@pytest.mark.parametrize("slope", [-3.0, 0.0, 0.9, 4.0])
def test_a_slope_is_found_beside_noise(slope: float) -> None:
    assert slope_per_min(samples(slope, 10)) == pytest.approx(slope, abs=0.1)


def test_the_warm_up_is_left_out() -> None:
    assert warm(samples(0, 0.5), 30)[0].at_s == 12
    assert warm(samples(0, 30), 1800)[0].at_s == 120


def test_each_claim_can_fail() -> None:
    assert failed(samples(0.5, 10)) == set()
    assert failed(samples(1.5, 10)) == {"memory is flat"}
    assert failed(samples(3, 0.5)) == set()  # too short to tell
    assert failed(samples(60, 0.5)) == {"memory is flat"}
    leaking = [Sample(one.at_s, one.anon_mib, 50 + int(one.at_s / 30)) for one in samples(0, 10)]
    assert failed(leaking) == {"descriptors are flat"}
    assert failed(samples(0, 1), minute(wrong_pages=1)) == {"every checked page was right"}
    assert failed(samples(0, 1), minute(errors=1)) == {"no request failed"}
    assert failed(samples(0, 1), minute(missed_pages=10)) == {"the cache was too small"}
    assert failed(samples(0, 1), Minute()) >= {"every checked page was right"}


def test_latencies_are_merged_across_processes() -> None:
    one, other = Latencies(), Latencies()
    for number in range(1000):
        (one if number % 2 else other).add(number / 1e6)
    one.merge(Latencies(other.plain()))
    assert one.percentile_ms(0.5) == pytest.approx(0.5, rel=0.05)
    assert one.percentile_ms(0.99) == pytest.approx(0.99, rel=0.05)
    assert Latencies().percentile_ms(0.99) == 0
