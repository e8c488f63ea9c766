"""A sample of the run in each CI: a few kills of a small full cache, and the servers that lack a
guard, each of which must be caught. The full counts are a step of ``make slow``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.restarts.broken import BREAKS
from tests.restarts.figures import WITHIN, Tally
from tests.restarts.run import Plan, Run


def play(plan: Plan, folder: Path, shared: Path) -> Tally:
    return Run(plan, folder, shared / "a", print).run()


def test_kills_of_a_full_cache_lose_nothing(short_dir: Path, shm_dir: Path) -> None:
    tally = play(Plan(5, 10_000, 1, hold_every=2), short_dir, shm_dir)
    document = tally.document()
    claims = document["claims"]
    # How soon it answers is a matter of what else runs here; `make slow` has the machine alone.
    del claims[WITHIN]
    assert [claim for claim, held in claims.items() if not held] == [], document
    assert len(tally.kills) == 5


@pytest.mark.sampled(3)
@pytest.mark.parametrize("broken", sorted(BREAKS))
def test_a_server_without_a_guard_is_caught(short_dir: Path, shm_dir: Path, broken: str) -> None:
    for seed in (1, 2):  # on a busy machine a few kills may all come at quiet moments
        plan = Plan(8, 4_000, seed, broken, hold_every=2, stop_at_wrong=True)
        folder, shared = short_dir / str(seed), shm_dir / str(seed)
        folder.mkdir()
        shared.mkdir()
        if play(plan, folder, shared).found_wrong:
            return
    pytest.fail(f"{broken}: nothing wrong was found")
