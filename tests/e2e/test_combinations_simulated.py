"""Every combination once more, its pools in memory of a simulated CUDA device: equal logits.

A few of them with ``make test``, all with ``make slow``. ``KV_SCHEDULE_SEED`` repeats a run, the
device's random delays included as far as threads allow; ``KV_SCHEDULES`` plays more of each.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from adapter.conformance.coverage.combine import combinations, sample
from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.host.simulated import simulating
from adapter.conformance.schedules.play import Tally
from adapter.conformance.schedules.service import serving
from adapter.conformance.schedules.sweep import Sweep
from tests.e2e.combined import SCHEDULES, SEED

pytestmark = pytest.mark.torch

EVERY = [
    pytest.param(one, id=one.test_id, marks=[] if one in sample() else [pytest.mark.slow])
    for one in combinations()
]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    with simulating(SEED) as environ, serving(environ) as service:
        models = tmp_path_factory.mktemp("models")
        with Sweep(service.url, models, device="simulated") as one:
            yield one


@pytest.mark.parametrize("combination", EVERY)
def test_combination(combination: Combination, sweep: Sweep) -> None:
    tally = Tally()
    print(f"KV_SCHEDULE_SEED={SEED}")
    sweep.run(combination, range(SEED, SEED + SCHEDULES), tally)
    assert tally.schedules == SCHEDULES
    assert tally.loaded_tokens > 0


@pytest.mark.parametrize(
    ("epoch", "layout", "mode", "said"),
    [
        ("E2", "v1", "sync", "the server reads the pool itself"),
        ("E2", "v1_private", "sync", "staging ring of"),
        ("E3", "v2_regions", "auto", "staging ring of"),
        ("E2", "v1", "layerwise", "staging ring of"),
    ],
)
def test_how_a_pool_is_shared(
    sweep: Sweep,
    caplog: pytest.LogCaptureFixture,
    epoch: str,
    layout: str,
    mode: str,
    said: str,
) -> None:
    """As docs/trtllm.md says of devices; the copies are the device's in either case."""
    with caplog.at_level("INFO", logger="kvkeep"):
        sweep.run(Combination(epoch, "plain", layout, mode, "1"), [SEED], Tally())
    assert [said in line for line in caplog.messages].count(True) == 1
    assert ("page-locked" in caplog.text) == (said != "the server reads the pool itself")
