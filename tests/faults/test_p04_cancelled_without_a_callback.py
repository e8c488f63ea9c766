"""P04: cancelled without a callback, and another request's forward fills the pages while they are
copied. Nothing of it is committed, on any way out of the pool, and no ring slot is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.adapter.enginerig import SIZE, EngineRig, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.faults.bystander import engaged, stats
from tests.faults.test_b09_pages_freed_while_saved import WAYS, make_rig
from tests.faults.test_b25_copies_hold_what_they_touch import stopped_copier
from tests.wire.client import make_namespace
from tests.wire.process import ServerProcess, wait_until

NUM_BLOCKS = 12


@pytest.fixture
def copying(own_server: ServerProcess) -> Iterator[Callable[[], bool]]:
    """Says whether the server has a copy in flight."""
    with engaged(own_server, make_namespace(model="watcher")) as watcher:
        yield lambda: stats(watcher)["copies_in_flight"] > 0


def begin(rig: EngineRig, prompt: list[int], pages: list[int]) -> FakeRequest:
    """Query, allocation of given pages, and the forward of the whole prompt."""
    request = FakeRequest(rig.next_id, list(prompt))
    rig.next_id += 1
    assert rig.query(request) == 0
    rig.wipe(pages)
    rig.scheduler.update_state_after_alloc(request, pages)
    report = Report(request.request_id, prompt, pages, 0, len(prompt))
    rig.iterate(Output([report]), forward=lambda: rig.fill(prompt, pages, 0))
    return request


def decode(rig: EngineRig, request: FakeRequest, prompt: list[int]) -> None:
    """One step under overlap: the request lives, all of its prompt is valid."""
    rig.iterate(Output([], [Report(request.request_id, [], [], len(prompt) - 1, 1)]))


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
    model = write_model(tmp_path / "m")
    rig = make_rig(way, own_server.url, model, monkeypatch)
    rig.run_saved(tokens(9, seed=1))
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=2)
    pages = rig.hand_out(NUM_BLOCKS + 1)
    with stopped_copier(own_server):
        request = begin(rig, prompt, pages)
        decode(rig, request, prompt)
        assert wait_until(copying)
        # Cancelled: no callback, no report; its pages are the next request's at once.
        taken = pages[first_taken:]
        num_saved = len(taken) - 1
        other = tokens(num_saved * SIZE + 1, seed=3)
        thief = begin(rig, other, taken)
        decode(rig, thief, other)
    assert wait_until(lambda: not copying())

    def other_is_saved() -> bool:
        decode(rig, thief, other)
        return rig.worker.counters()["chunks_saved"] == 2 + num_saved

    assert wait_until(other_is_saved), rig.worker.counters()
    rig.close()
    second = make_rig(way, own_server.url, model, monkeypatch)
    assert second.run(prompt).offered == 0  # nobody vouched for it after the copy
    assert second.run(other).offered == num_saved * SIZE
    second.close()


@pytest.mark.parametrize("way", WAYS)
def test_p04_still_reported_when_its_pages_are_anothers(
    own_server: ServerProcess,
    copying: Callable[[], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """Cancelled under overlap: a batch that was scheduled before still counts it as alive."""
    model = write_model(tmp_path / "m")
    rig = make_rig(way, own_server.url, model, monkeypatch)
    rig.run_saved(tokens(9, seed=1))
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=6)
    pages = rig.hand_out(NUM_BLOCKS + 1)
    with stopped_copier(own_server):
        request = begin(rig, prompt, pages)
        decode(rig, request, prompt)
        assert wait_until(copying)
        begin(rig, tokens(len(pages[5:]) * SIZE, seed=7), pages[5:])
    assert wait_until(lambda: not copying())

    def is_closed() -> bool:
        decode(rig, request, prompt)
        counts = rig.worker.counters()
        return counts.get("saves_withdrawn", 0) > 0 or counts["chunks_saved"] > 2

    assert wait_until(is_closed), rig.worker.counters()
    rig.close()
    second = make_rig(way, own_server.url, model, monkeypatch)
    assert second.run(prompt).offered == 5 * SIZE  # what nobody else was given, bytes checked
    second.close()


@pytest.mark.parametrize("way", WAYS)
def test_p04_cancelled_before_anything_was_copied(
    own_server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """Named for a forward that ran, never reported again: there is no second word, so no STORE."""
    model = write_model(tmp_path / "m")
    rig = make_rig(way, own_server.url, model, monkeypatch)
    rig.run_saved(tokens(9, seed=1))
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=4)
    pages = rig.hand_out(NUM_BLOCKS + 1)
    begin(rig, prompt, pages)
    other = tokens(NUM_BLOCKS * SIZE + 1, seed=5)
    thief = begin(rig, other, pages)

    def other_is_saved() -> bool:
        decode(rig, thief, other)
        return rig.worker.counters()["chunks_saved"] == 2 + NUM_BLOCKS

    assert wait_until(other_is_saved), rig.worker.counters()
    rig.close()
    second = make_rig(way, own_server.url, model, monkeypatch)
    assert second.run(prompt).offered == 0
    second.close()
