"""B09: pages of a finished or preempted request are not reused while any rank still copies them.

On the three ways out of the pool: read by the server, staged whole, staged layer by layer; and on
two ranks, of which one is late. What another engine then loads is the original, or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adapter.enginerig import SIZE, EngineRig, Stream, write_model
from tests.adapter.hostlike import Output, tokens
from tests.adapter.rankrig import RankRig
from tests.faults.savingrig import WAYS, SavingRig
from tests.faults.test_b25_copies_hold_what_they_touch import stopped_copier
from tests.wire.process import ServerProcess, wait_until

NUM_BLOCKS = 10


def nothing_is_given_back(rig: EngineRig, request_id: int, stretch_s: float = 0.3) -> None:
    deadline_s = time.monotonic() + stretch_s
    while time.monotonic() < deadline_s:
        rig.iterate(Output())
        assert request_id not in rig.saved
        time.sleep(0.002)  # a pace; the stretch bounds it


@pytest.mark.parametrize("way", WAYS)
def test_b09_held_until_the_copy_ended(
    own_server: ServerProcess,
    copying: Callable[[], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    saving = SavingRig(way, own_server, tmp_path, monkeypatch)
    rig = saving.rig
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=2)
    with stopped_copier(own_server):
        outcome = rig.run(prompt)
        request_id = rig.next_id - 1
        assert outcome.kept is True
        assert wait_until(copying)
        nothing_is_given_back(rig, request_id)
    rig.settle(request_id)
    rig.pages[outcome.pages] = 0xEE  # the host hands them out in the same moment
    assert rig.worker.counters().get("ring_lots_lent", 0) == 0
    assert saving.offered(prompt) == [NUM_BLOCKS]


@pytest.mark.parametrize("way", WAYS)
def test_b09_finished_while_it_is_copied(
    own_server: ServerProcess,
    copying: Callable[[], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """All of it was sent, and nothing is left to be sent: the copy itself keeps the pages."""
    saving = SavingRig(way, own_server, tmp_path, monkeypatch)
    rig = saving.rig
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=6)
    with stopped_copier(own_server):
        pages = rig.hand_out(NUM_BLOCKS + 1)
        request = saving.begin(prompt, pages)
        saving.decode(request, prompt)
        assert wait_until(copying)
        request.tokens.append(1)
        assert rig.scheduler.request_finished(request, pages) is True
        rig.collect((request.request_id,))
        nothing_is_given_back(rig, request.request_id)
    rig.settle(request.request_id)
    rig.pages[pages] = 0xEE
    assert saving.offered(prompt) == [NUM_BLOCKS]


class HeldStream(Stream):
    def __init__(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done


def test_b09_held_until_every_ranks_store_ended(own_server: ServerProcess, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m")
    rig = RankRig(own_server.url, model, 2).register()
    rig.run_saved(tokens(9, seed=1))
    late = rig.streams[1] = HeldStream()  # the other rank's forward ends late, and so its saves do
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=3)
    outcome = rig.run(prompt)
    request_id = rig.next_id - 1
    assert outcome.kept is True
    assert wait_until(lambda: rig.worker.counters()["chunks_saved"] == 2 + NUM_BLOCKS)
    nothing_is_given_back(rig, request_id)
    late.is_done = True
    rig.settle(request_id)
    for pages in rig.rank_pages:
        pages[outcome.pages] = 0xEE
    rig.close()
    second = RankRig(own_server.url, model, 2).register()
    assert second.run(prompt).offered == NUM_BLOCKS * SIZE  # checked on both ranks
    second.close()


@pytest.mark.parametrize("way", WAYS)
def test_b09_preempted_while_copied_and_refilled_at_once(
    own_server: ServerProcess,
    copying: Callable[[], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    saving = SavingRig(way, own_server, tmp_path, monkeypatch)
    rig = saving.rig
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=4)
    with stopped_copier(own_server):
        pages = rig.hand_out(NUM_BLOCKS + 1)
        saving.decode(saving.begin(prompt, pages), prompt)
        assert wait_until(copying)
        other = tokens(len(pages) * SIZE, seed=5)
        saving.begin(other, pages)
    assert wait_until(lambda: not copying())
    assert wait_until(lambda: withdrawn(rig))
    # Absent: its pages were another's before the COMMIT. Of the other its own bytes, or none.
    assert saving.offered(prompt, other)[0] == 0


def withdrawn(rig: EngineRig) -> bool:
    rig.iterate(Output())
    return rig.worker.counters().get("saves_withdrawn", 0) > 0
