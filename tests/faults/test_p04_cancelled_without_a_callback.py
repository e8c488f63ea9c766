"""P04: cancelled without a callback, and another request's forward fills the pages while they are
copied. Nothing of it is committed, on any way out of the pool, and no ring slot is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adapter.enginerig import SIZE
from tests.adapter.hostlike import tokens
from tests.faults.savingrig import WAYS, SavingRig
from tests.faults.test_b25_copies_hold_what_they_touch import stopped_copier
from tests.wire.process import ServerProcess, wait_until

NUM_BLOCKS = 12


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first_taken", [0, 5, NUM_BLOCKS - 1])
def test_p04_refilled_while_the_copy_runs(
    own_server: ServerProcess,
    copying: Callable[[], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    first_taken: int,
) -> None:
    saving = SavingRig(way, own_server, tmp_path, monkeypatch)
    rig = saving.rig
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=2)
    pages = rig.hand_out(NUM_BLOCKS + 1)
    with stopped_copier(own_server):
        request = saving.begin(prompt, pages)
        saving.decode(request, prompt)
        assert wait_until(copying)
        # Cancelled: no callback, no report; its pages are the next request's at once.
        taken = pages[first_taken:]
        num_saved = len(taken) - 1
        other = tokens(num_saved * SIZE + 1, seed=3)
        thief = saving.begin(other, taken)
        saving.decode(thief, other)
    assert wait_until(lambda: not copying())

    def other_is_saved() -> bool:
        saving.decode(thief, other)
        return rig.worker.counters()["chunks_saved"] == 2 + num_saved

    assert wait_until(other_is_saved), rig.worker.counters()
    # Nobody vouched for the first one after its copy.
    assert saving.offered(prompt, other) == [0, num_saved]


@pytest.mark.parametrize("way", WAYS)
def test_p04_still_reported_when_its_pages_are_anothers(
    own_server: ServerProcess,
    copying: Callable[[], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """Cancelled under overlap: a batch that was scheduled before still counts it as alive."""
    saving = SavingRig(way, own_server, tmp_path, monkeypatch)
    rig = saving.rig
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=6)
    pages = rig.hand_out(NUM_BLOCKS + 1)
    with stopped_copier(own_server):
        request = saving.begin(prompt, pages)
        saving.decode(request, prompt)
        assert wait_until(copying)
        saving.begin(tokens(len(pages[5:]) * SIZE, seed=7), pages[5:])
    assert wait_until(lambda: not copying())

    def is_closed() -> bool:
        saving.decode(request, prompt)
        counts = rig.worker.counters()
        return counts.get("saves_withdrawn", 0) > 0 or counts["chunks_saved"] > 2

    assert wait_until(is_closed), rig.worker.counters()
    assert saving.offered(prompt) == [5]  # what nobody else was given


@pytest.mark.parametrize("way", WAYS)
def test_p04_cancelled_before_anything_was_copied(
    own_server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """Named for a forward that ran, never reported again: there is no second word, so no STORE."""
    saving = SavingRig(way, own_server, tmp_path, monkeypatch)
    rig = saving.rig
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=4)
    pages = rig.hand_out(NUM_BLOCKS + 1)
    saving.begin(prompt, pages)
    other = tokens(NUM_BLOCKS * SIZE + 1, seed=5)
    thief = saving.begin(other, pages)

    def other_is_saved() -> bool:
        saving.decode(thief, other)
        return rig.worker.counters()["chunks_saved"] == 2 + NUM_BLOCKS

    assert wait_until(other_is_saved), rig.worker.counters()
    assert saving.offered(prompt) == [0]
