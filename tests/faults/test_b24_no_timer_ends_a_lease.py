"""B24: a request queues for long between its LOOKUP and its load; the lease waits for it.

The engine's side of it: whatever the time, whatever others store meanwhile, all bytes are there;
and should a request be given up that the host had not, its load fails aloud.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from adapter import requests
from adapter.copy import LoadError
from tests.adapter.enginerig import SIZE, EngineRig, write_model
from tests.adapter.hostlike import Output, Report, tokens
from tests.adapter.rankrig import RankRig
from tests.faults.pressing import press
from tests.wire.process import ServerProcess

WAIT_S = 12.0
"""Beyond every time-out of the adapter, the server and the protocol but those of a minute."""

ARENA = ("--l1-size", "2M", "--extent-size", "512K", "--incomplete-timeout", "1")
SLOTS_OF_A_SHARD = 256
PROMPT = tokens(30)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m")


@pytest.fixture
def server(short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    with ServerProcess(short_dir, shm_dir / "a", *ARENA) as process:
        yield process


def test_b24_a_request_that_queues_for_long_loads_all_bytes(
    server: ServerProcess, model: Path
) -> None:
    """Of an engine of one rank, and of one of two, over the same time."""
    url = server.url
    solo: list[EngineRig] = [EngineRig(url, model).register() for _ in range(2)]
    duo: list[EngineRig] = [RankRig(url, model, 2).register() for _ in range(2)]
    pairs = [(solo[0], solo[1]), (duo[0], duo[1])]
    try:
        queued = []
        for rig, presser in pairs:
            rig.run_saved(PROMPT)
            request, offered, pages = rig.begin(PROMPT)
            assert offered == 28
            press(presser, SLOTS_OF_A_SHARD)
            queued.append((request, pages))
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:  # far more iterations than a request is remembered for
            for rig, _ in pairs:
                rig.iterate(Output())
            time.sleep(0.05)  # a pace
        for (rig, presser), (request, pages) in zip(pairs, queued, strict=True):
            press(presser, 20)
            report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - 28)
            rig.iterate(Output([report]), forward=partial(rig.check, PROMPT, pages, 28 // SIZE))
            assert rig.worker.counters()["pages_loaded"] == 7
        for rig, _ in pairs:
            rig.check_nothing_leased()
    finally:
        for one in (*solo, *duo):
            one.close()


def test_b24_what_was_taken_for_cancelled_and_comes_after_all_fails_aloud(
    server: ServerProcess, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "EXPIRE_S", 0.2)
    rig = EngineRig(server.url, model).register()
    try:
        rig.run_saved(PROMPT)
        request, offered, pages = rig.begin(PROMPT)
        assert offered == 28
        time.sleep(0.3)
        for _ in range(requests.EXPIRE_ITERATIONS + requests.EXPIRE_EVERY + 1):
            rig.iterate(Output())
        rig.check_nothing_leased()  # nobody could tell it from one that was cancelled
        report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
        with pytest.raises(LoadError, match="28 tokens were promised"):
            rig.iterate(Output([report]))
    finally:
        rig.close()
