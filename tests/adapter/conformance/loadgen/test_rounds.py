from pathlib import Path

import pytest

from adapter.conformance.loadgen import memcpy
from adapter.conformance.loadgen.engine import Engine, LoadgenError
from adapter.conformance.loadgen.orders import Fill, Rounds
from adapter.conformance.loadgen.rounds import run_fill, run_rounds
from adapter.conformance.loadgen.transfers import Reader
from tests.adapter.conformance.loadgen.conftest import PAGE_BYTES
from tests.wire.process import ServerProcess

METHODS = {
    f"{direction}{method}"
    for direction in ("store", "retrieve")
    for method in ("", "_copyto", "_memmove")
}


def order(server: ServerProcess) -> Rounds:
    return Rounds(rounds=3, num_requests=4, pages_per_request=8, pid=server.pid, seed=1)


def test_rounds_time_every_method_once_each(
    engine: Engine, reader: Reader, server: ServerProcess
) -> None:
    steps: list[tuple[int, int]] = []
    found = run_rounds(engine, reader, order(server), lambda done, of: steps.append((done, of)))
    assert found["seconds"].keys() == METHODS
    assert all(len(times) == 3 and min(times) > 0 for times in found["seconds"].values())
    assert found["num_bytes"] == 32 * PAGE_BYTES
    assert 0 <= found["loop_share"] <= 1
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_pages_that_do_not_come_back_fail_the_round(
    engine: Engine, reader: Reader, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A reader that loads nothing is fast and must not pass.
    monkeypatch.setattr(Reader, "retrieve_s", lambda self, prompts: 0.001)
    for name in memcpy.METHODS:
        monkeypatch.setitem(memcpy.METHODS, name, lambda route: 0.001)
    with pytest.raises(LoadgenError, match="32 of 32 pages came back with other bytes"):
        run_rounds(engine, reader, order(server), lambda done, of: None)


def test_fill_touches_new_slots(
    engine: Engine, reader: Reader, server: ServerProcess, scratch_dir: Path
) -> None:
    found = run_fill(
        engine,
        reader,
        Fill(
            num_requests=4,
            pages_per_request=8,
            scratch_dir=str(scratch_dir),
            pid=server.pid,
            seed=1,
        ),
        lambda done, of: None,
    )
    assert found["seconds"].keys() == METHODS
    assert all(len(times) == 4 for times in found["seconds"].values())
    assert found["fill_s"] >= sum(found["seconds"]["store"])
    assert found["num_bytes"] == 8 * PAGE_BYTES
