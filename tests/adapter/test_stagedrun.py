"""Only what the first word after a forward counts as computed is used of a staged run."""

from __future__ import annotations

import numpy as np
import pytest

from adapter.ring import Lot
from adapter.stagedrun import StagedRun


def run(first: int = 4, chunks: int = 3) -> StagedRun:
    slots = np.arange(chunks, dtype=np.int32)
    return StagedRun(1, first, chunks, slots, Lot(0, slots), bind=1)


@pytest.mark.parametrize(("valid", "left"), [(0, 0), (4, 0), (5, 1), (7, 3), (99, 3)])
def test_a_trimmed_forward_leaves_fewer_chunks(valid: int, left: int) -> None:
    one = run()
    assert one.vouch(valid) == (left > 0)
    assert (one.num_chunks, one.stop_chunk) == (left, 4 + left)


def test_only_the_first_word_counts() -> None:
    one = run()
    one.vouch(5)
    assert one.vouch(99)
    assert one.num_chunks == 1
