"""A whole run in small: real servers, real load generators, every figure."""

import math
from dataclasses import replace

import pytest

from server.bench import sizing
from server.bench.children import Progress, workplace
from server.bench.figures import LOADS, figures
from server.bench.run import Run

MIB = 1 << 20
SMALL = replace(
    sizing.choose(24 << 30, quick=True),
    arena_bytes=320 * MIB,
    start_arena_bytes=128 * MIB,
    pool_requests=1,
    requests_per_round=1,
    rounds=2,
    starts=1,
    calls=20,
    lookups=5,
    cold_lookups=2,
)


# The short benchmark is a step of .ci/run.
@pytest.mark.slow
def test_every_figure_is_measured_and_nothing_stays() -> None:
    steps: list[str] = []

    def begin(name: str) -> Progress:
        steps.append(name)
        return lambda done, of: None

    with workplace() as place:
        measured, taken = Run(place, SMALL, 1, begin).measure()
        folders = (place.runtime_dir, place.shm_dir)
    assert not any(folder.exists() for folder in folders)
    found = {figure.name: figure.value for figure in figures(measured)}
    assert all(math.isfinite(value) for value in found.values())
    assert all(value > 0 for name, value in found.items() if name != "heavy_libraries")
    assert measured.warm.keys() == set(LOADS)
    assert measured.heavy == ()
    assert measured.idle_main_rss_mib < measured.idle_rss_mib
    # Control traffic of others was there, and was not there before it was ordered.
    assert measured.warm[50].loop_share > measured.warm[0].loop_share
    assert taken["load_50"]["flood"]["calls"] > 0
    assert len(taken["load_0"]["seconds"]["store"]) == SMALL.rounds
    assert steps[0] == "starting servers"
    assert len(steps) == len(set(steps)) == 9
