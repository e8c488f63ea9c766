"""P11: one rank is seconds late with its load; leases of a living engine wait for it.

Meanwhile another engine of the model evicts whatever is not held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapter.enginerig import SIZE, Stream, write_model
from tests.adapter.hostlike import Output, Report, tokens
from tests.adapter.rankrig import RankRig
from tests.faults.pressing import press
from tests.wire.process import ServerProcess

LATE_S = 3.0
ARENA = ("--l1-size", "2M", "--extent-size", "512K")
SLOTS_OF_A_SHARD = 256
"""An upper bound: 1 MiB for each of two shards, 4 KiB for each of their chunks."""

PROMPT = tokens(30)
UNHELD = tokens(30, seed=5)


class HeldStream(Stream):
    def __init__(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m")


@pytest.fixture
def server(short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    with ServerProcess(short_dir, shm_dir / "a", *ARENA) as process:
        yield process


@pytest.fixture
def presser(server: ServerProcess, model: Path) -> Iterator[RankRig]:
    rig = RankRig(server.url, model, 2).register()
    yield rig
    rig.close()


def test_p11_a_rank_that_is_seconds_late_loads_what_was_offered(
    server: ServerProcess, model: Path, presser: RankRig
) -> None:
    rig = RankRig(server.url, model, 2).register()
    try:
        rig.run_saved(UNHELD)
        rig.run_saved(PROMPT)
        request, offered, pages = rig.begin(PROMPT)
        assert offered == 28

        def before_rank(rank: int) -> None:
            if rank == 1:
                begin_s = time.monotonic()
                press(presser, SLOTS_OF_A_SHARD)
                time.sleep(max(0.0, begin_s + LATE_S - time.monotonic()))

        checked = []

        def forward() -> None:
            rig.check(PROMPT, pages, offered // SIZE)  # on both ranks
            checked.append(True)

        rig.before_rank = before_rank
        report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
        rig.iterate(Output([report]), forward=forward)
        assert checked == [True]
        rig.before_rank = lambda rank: None
        rig.check_nothing_leased()
        assert rig.run(UNHELD).offered == 0  # what was not leased is gone
    finally:
        rig.close()


def test_p11_a_rank_whose_background_load_is_seconds_late(
    server: ServerProcess, model: Path, presser: RankRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_CONFORMANCE_EPOCH", "E4")
    rig = RankRig(server.url, model, 2).register()
    try:
        rig.run_saved(PROMPT)
        request, offered, pages = rig.begin(PROMPT)
        assert rig.parked == [request.request_id]
        late = rig.streams[1] = HeldStream()
        rig.iterate(Output())
        press(presser, SLOTS_OF_A_SHARD)
        timer = threading.Timer(LATE_S, lambda: setattr(late, "is_done", True))
        timer.start()
        while rig.loading:
            assert timer.is_alive() or late.is_done
            rig.iterate(Output())
            time.sleep(0.005)  # a pace, not a wait: the timer ends it
        assert late.is_done
        rig.check(PROMPT, pages, offered // SIZE)
        rig.check_nothing_leased()
    finally:
        rig.close()
