"""Every combination of one process, by the id in docs/trtllm.md: equal logits, nothing left.

``KV_SCHEDULE_SEED`` repeats a run, ``KV_SCHEDULES`` plays more per combination. ``make test``
plays a part, which ``KV_SAMPLED`` repeats.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.schedules.play import Tally
from adapter.conformance.schedules.sweep import Sweep
from tests.e2e.combined import SCHEDULES, SEED, chosen, sweeping

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    with sweeping(tmp_path_factory.mktemp("models")) as one:
        yield one


@pytest.mark.sampled(2)
@pytest.mark.parametrize("combination", chosen(is_solo=True), ids=lambda one: one.test_id)
def test_combination(combination: Combination, sweep: Sweep) -> None:
    tally = Tally()
    print(f"KV_SCHEDULE_SEED={SEED}")
    sweep.run(combination, range(SEED, SEED + SCHEDULES), tally)
    assert tally.schedules == SCHEDULES
    assert tally.requests > 0
