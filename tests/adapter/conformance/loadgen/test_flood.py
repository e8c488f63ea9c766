import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.conformance.loadgen.engine import Engine
from adapter.conformance.loadgen.flood import Pace, run_flood
from adapter.conformance.loadgen.orders import Flood
from tests.adapter.conformance.loadgen.conftest import joining
from tests.wire.process import ServerProcess


@given(share=st.floats(0.1, 0.9), cost_s=st.floats(2e-5, 1e-3), own_share=st.floats(0.0, 0.05))
def test_pace_finds_the_rate_whatever_a_call_costs(
    share: float, cost_s: float, own_share: float
) -> None:
    pace = Pace(share)
    rate = 500.0
    for _ in range(40):
        rate = pace.adjust(min(1.0, own_share + rate * cost_s))
    assert own_share + rate * cost_s == pytest.approx(share, abs=0.02)


def test_calls_come_due_at_the_rate() -> None:
    pace = Pace(0.5)
    rate = pace.adjust(0.5)
    calls = sum(pace.due(0.001) for _ in range(1000))
    assert calls == pytest.approx(rate, abs=1)


def test_what_could_not_be_sent_is_let_go() -> None:
    pace = Pace(0.5)
    assert pace.due(2.0) > 100
    assert pace.due(0.0) == 0


def test_the_loop_gets_busy(server: ServerProcess, scratch_dir: Path) -> None:
    engine = Engine.join(joining(server, scratch_dir, "flood"))
    try:
        settled: list[float] = []
        found = run_flood(
            engine,
            Flood(pid=server.pid, share=0.3, seed=1),
            lambda done, of: settled.append(time.monotonic()),
            lambda: bool(settled) and time.monotonic() > settled[0] + 1.0,
        )
    finally:
        engine.leave()
    assert len(settled) == 1
    assert found["calls"] > 50
    assert found["seconds"] >= 1.0
    # Other processes of a busy machine may take the loop's CPU away; more than ordered they
    # cannot give it.
    assert 0.05 < found["share"] < 0.5
