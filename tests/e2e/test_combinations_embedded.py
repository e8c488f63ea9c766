"""A combination of each mode and number of ranks once more, with a private server: no service.

``KV_SCHEDULE_SEED`` repeats a run, ``KV_SCHEDULES`` plays more per combination.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.coverage.combine import combinations
from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.schedules.play import Tally
from adapter.conformance.schedules.sweep import Sweep
from adapter.embedded import SETTINGS_PREFIX
from tests.e2e.combined import SCHEDULES, SEED

pytestmark = pytest.mark.torch

URL = "inproc://"


def one_of_each() -> list[Any]:
    """The first combination of each pair of mode and ranks; four processes only in the slow run."""
    found: dict[tuple[str, str], Combination] = {}
    for one in combinations():
        found.setdefault((one.mode, one.ranks), one)
    return [
        pytest.param(one, id=one.test_id, marks=[pytest.mark.slow] if one.ranks == "tp4" else [])
        for one in found.values()
    ]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"{SETTINGS_PREFIX}L1_SIZE", "96M")
        patch.setenv(f"{SETTINGS_PREFIX}EXTENT_SIZE", "4M")
        with Sweep(URL, tmp_path_factory.mktemp("models")) as one:
            yield one


@pytest.mark.parametrize("combination", one_of_each())
def test_combination(combination: Combination, sweep: Sweep) -> None:
    tally = Tally()
    print(f"KV_SCHEDULE_SEED={SEED}")
    sweep.run(combination, range(SEED, SEED + SCHEDULES), tally)
    assert tally.schedules == SCHEDULES
    assert tally.loaded_tokens > 0
