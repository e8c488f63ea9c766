"""P20, P04, B09: pages are recycled while the server still reads them; nothing wrong is published.

The copier is stopped while requests end and their pages go to others, then let go on: the copy
then holds the other request's bytes, and must be withdrawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adapter.enginerig import SIZE, EngineRig, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.faults.bystander import engaged, stats
from tests.faults.test_b25_copies_hold_what_they_touch import stopped_copier
from tests.wire.client import make_namespace
from tests.wire.process import ServerProcess, wait_until

NUM_BLOCKS = 20
"""More than a pool of 64 pages may hold for saves: the host's request is answered False."""


class Running:
    """A request that has been prefilled, reported again and is being copied."""

    def __init__(self, rig: EngineRig, prompt: list[int]) -> None:
        self.rig = rig
        self.prompt = prompt
        self.request, offered, self.pages = rig.begin(prompt)
        assert offered == 0
        report = Report(self.request.request_id, prompt, self.pages, 0, len(prompt))
        rig.iterate(Output([report]), forward=lambda: rig.fill(prompt, self.pages, 0))
        self.report_alive()

    def report_alive(self) -> None:
        """One decode step under overlap: no token is known yet, all of the prompt is valid."""
        report = Report(self.request.request_id, [], [], len(self.prompt) - 1, 1)
        self.rig.iterate(Output([], [report]))

    def finish(self) -> bool:
        self.request.tokens.append(1)
        return self.rig.scheduler.request_finished(self.request, self.pages)


@pytest.fixture
def small_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "5")


def recycle(rig: EngineRig, pages: list[int], seed: int) -> list[int]:
    """Another request gets exactly these pages, and its forward fills them."""
    prompt = tokens(len(pages) * SIZE, seed=seed)
    request = FakeRequest(rig.next_id, prompt)
    rig.next_id += 1
    rig.query(request)
    rig.scheduler.update_state_after_alloc(request, pages)
    report = Report(request.request_id, prompt, pages, 0, len(prompt))
    rig.iterate(Output([report]), forward=lambda: rig.fill(prompt, pages, 0))
    return prompt


@pytest.mark.usefixtures("small_cap")
@pytest.mark.parametrize("way", ["finished", "cancelled"])
@pytest.mark.parametrize("first_recycled", [0, 7, NUM_BLOCKS - 1])
def test_p20_p04_pages_handed_out_again_during_the_copy(
    own_server: ServerProcess,
    copying: Callable[[], bool],
    tmp_path: Path,
    way: str,
    first_recycled: int,
) -> None:
    rig = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    warm = tokens(9, seed=1)
    rig.run_saved(warm)  # the pool is mapped and an extent is there
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=2)
    with stopped_copier(own_server):
        running = Running(rig, prompt)
        assert wait_until(copying)
        if way == "finished":
            assert running.finish() is False  # the cap: the host has its pages back at once
            rig.collect(())
        other = recycle(rig, running.pages[first_recycled:NUM_BLOCKS], seed=3)
    assert wait_until(lambda: not copying())
    if way == "finished" or first_recycled == 0:
        assert wait_until(lambda: settled(rig))
    else:  # the unchanged rest waits for a sign of life of its request, in vain
        for _ in range(50):
            assert not settled(rig)
    assert rig.worker.counters().get("chunks_saved", 0) == 2  # of the first request
    rig.close()
    # Another engine gets the original bytes or none; ``run`` checks each page it loads.
    second = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    assert second.run(prompt).offered <= first_recycled * SIZE
    second.run(other)
    assert second.run(warm).offered == 8
    second.close()


@pytest.mark.usefixtures("small_cap")
@pytest.mark.parametrize("first_recycled", [0, 7])
def test_p20_pages_handed_out_again_whatever_the_reports_say(
    own_server: ServerProcess,
    copying: Callable[[], bool],
    tmp_path: Path,
    first_recycled: int,
) -> None:
    """A report counts the request as alive after the copy: its pages are another's all the same."""
    rig = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    rig.run_saved(tokens(9, seed=1))
    prompt = tokens(NUM_BLOCKS * SIZE + 1, seed=2)
    with stopped_copier(own_server):
        running = Running(rig, prompt)
        assert wait_until(copying)
        recycle(rig, running.pages[first_recycled:NUM_BLOCKS], seed=3)
    assert wait_until(lambda: not copying())

    def is_closed() -> bool:
        running.report_alive()
        counts = rig.worker.counters()
        return counts.get("saves_withdrawn", 0) > 0 or counts["chunks_saved"] > 2

    assert wait_until(is_closed), rig.worker.counters()
    rig.close()
    second = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    assert second.run(prompt).offered == first_recycled * SIZE  # and each page is the original
    second.close()


def settled(rig: EngineRig) -> bool:
    """Whether the copied STORE was withdrawn or committed; iterations go on meanwhile."""
    rig.iterate(Output())
    counts = rig.worker.counters()
    return counts.get("saves_withdrawn", 0) + counts.get("saves_stopped_withdrawn", 0) > 0


def test_b09_pages_are_held_until_the_copy_ended(
    own_server: ServerProcess, copying: Callable[[], bool], tmp_path: Path
) -> None:
    """Finished with True: not given back while the copier reads; overwritten right after."""
    rig = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    rig.run_saved(tokens(9, seed=1))
    prompt = tokens(10 * SIZE + 1, seed=4)
    with stopped_copier(own_server):
        outcome = rig.run(prompt)
        request_id = rig.next_id - 1
        assert outcome.kept is True
        assert wait_until(copying)
        deadline_s = time.monotonic() + 0.3  # the stretch in which nothing may be given back
        while time.monotonic() < deadline_s:
            rig.iterate(Output())
            assert request_id not in rig.saved
    rig.settle(request_id)
    rig.pages[outcome.pages] = 0xEE  # the host hands them out in the same moment
    rig.close()
    second = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    assert second.run(prompt).offered == 10 * SIZE
    second.close()


@pytest.mark.parametrize("num_requests", [6])
def test_b09_many_requests_preempted_at_random_moments(
    own_server: ServerProcess, tmp_path: Path, num_requests: int
) -> None:
    """No stopped copier, only speed: requests vanish at once and their pages are refilled."""
    rig = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    prompts = [tokens(10 * SIZE + 1, seed=50 + n) for n in range(num_requests)]
    for turn in range(60):
        running = begin_or_load(rig, prompts[turn % num_requests])
        if running is None:
            continue
        for _ in range(turn % 4):
            running.report_alive()
        if turn % 3 == 0:
            running.finish()
        recycle(rig, running.pages[turn % 10 : 10], seed=1000 + turn)
    rig.close()
    second = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    for prompt in prompts:
        second.run(prompt)
    second.close()


def begin_or_load(rig: EngineRig, prompt: list[int]) -> Running | None:
    """Begins a request; one that is cached by now is loaded and checked instead."""
    probe = FakeRequest(10_000 + rig.next_id, list(prompt))
    if rig.query(probe):
        rig.iterate(Output())
        rig.run(prompt)
        return None
    rig.iterate(Output())
    return Running(rig, prompt)


@pytest.mark.parametrize("times", [2, 3])
def test_p19_finished_again_and_again_is_true_once(
    own_server: ServerProcess, tmp_path: Path, times: int
) -> None:
    rig = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    running = Running(rig, tokens(22, seed=7))
    answers = [running.finish() for _ in range(times)]
    assert sum(answers) <= 1
    assert rig.scheduler.request_finished(running.request, []) is False
    if any(answers):
        rig.collect((running.request.request_id,))
        rig.settle(running.request.request_id)
    assert rig.worker.counters()["held_pages"] == 0
    rig.close()


def test_p19_never_finished_leaks_no_lease(own_server: ServerProcess, tmp_path: Path) -> None:
    """Cancelled without a callback at each stage: nothing stays leased in the server."""
    rig = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    prompt = tokens(22, seed=8)
    rig.run_saved(prompt)
    with engaged(own_server, make_namespace(model="watcher")) as watcher:

        def pins() -> tuple[int, int]:
            now = stats(watcher)
            return now["leases"], now["pinned_slots"]

        for stage in range(3):
            for _ in range(10):
                probe = FakeRequest(rig.next_id, list(prompt))
                if stage == 0:  # asked, and never allocated
                    rig.next_id += 1
                    assert rig.query(probe) == 20
                    rig.iterate(Output())
                    continue
                request, offered, pages = rig.begin(prompt)
                assert offered == 20
                rig.iterate(Output([Report(request.request_id, prompt, pages, 0, 2)]))
                if stage == 2:
                    rig.iterate(Output([], [Report(request.request_id, [], [], 21, 1)]))
            assert wait_until(lambda: pins() == (0, 0), 10), (stage, pins())
        # Allocated and never reported: the offer might still be taken up, until it expires (a
        # minute and 64 iterations, in tests/adapter/test_requests.py) or the engine leaves.
        for _ in range(5):
            rig.begin(prompt)
            rig.iterate(Output())
        assert 0 < pins()[0] <= 5
        rig.close()
        assert wait_until(lambda: pins() == (0, 0), 10), pins()
