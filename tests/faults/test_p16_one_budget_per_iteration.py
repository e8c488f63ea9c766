"""P16: many new requests in one iteration wait for a silent server once together, not each."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import FakeRequest, Output, tokens
from tests.wire.process import ServerProcess, wait_until

NUM_NEW = 32


def ask_all(rig: EngineRig, seed: int) -> tuple[float, int]:
    """One iteration's queries; returns the seconds they took together and what was offered."""
    requests = []
    for number in range(NUM_NEW):
        requests.append(FakeRequest(rig.next_id, tokens(41, seed=seed + number)))
        rig.next_id += 1
    begin_s = time.perf_counter()
    offered = sum(rig.query(request) for request in requests)
    taken_s = time.perf_counter() - begin_s
    rig.iterate(Output())
    return taken_s, offered


@pytest.mark.parametrize("budget_ms", [20, 100])
def test_p16_a_stopped_server_costs_one_budget_an_iteration(
    own_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget_ms: int
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", str(budget_ms))
    rig = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    try:
        assert wait_until(lambda: ask_all(rig, 0)[0] < 1.0)
        rig.run_hit(tokens(21, seed=1), 20)
        os.kill(own_server.pid, signal.SIGSTOP)
        taken_s = []
        for iteration in range(6):
            seconds, offered = ask_all(rig, 1000 + NUM_NEW * iteration)
            assert offered == 0
            taken_s.append(seconds)
        # Each alone within its own wait would be 32 budgets; a busy machine adds some.
        assert min(taken_s) < budget_ms / 1000 + 0.05
        assert max(taken_s) < 4 * budget_ms / 1000 + 0.3
        assert sum(taken_s) < 6 * (budget_ms / 1000 + 0.1)
        # And each iteration has a budget of its own: what one has spent ends with it.
        os.kill(own_server.pid, signal.SIGCONT)
        assert wait_until(lambda: rig.run_saved(tokens(21, seed=1)).offered == 20)
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
        rig.close()
