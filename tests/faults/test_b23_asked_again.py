"""B23: the host asks once, twice, thrice, while a request waits for its load or after it got no
blocks; the answers agree, what was promised is pinned once, and in the end nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapter.enginerig import SIZE, EngineRig, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.wire.process import ServerProcess

NUM = 10
PROMPT = tokens(NUM * SIZE + 1)


@pytest.fixture(params=["sync", "async"])
def rig(
    request: pytest.FixtureRequest,
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[EngineRig]:
    monkeypatch.setenv("TRTLLM_KVKEEP_LOAD_MODE", request.param)
    monkeypatch.setenv("TRTLLM_CONFORMANCE_EPOCH", "E4")
    made = EngineRig(server.url, write_model(tmp_path / "m")).register()
    made.run_saved(PROMPT)
    yield made
    made.check_nothing_leased()
    made.close()


def pinned(rig: EngineRig) -> int:
    return rig.stats()["pinned_slots"]


def asked(rig: EngineRig, request: FakeRequest, matched: int) -> int:
    """A query of which no load follows."""
    count = rig.query(request, matched)
    rig.parked.clear()
    return count


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(matches=st.lists(st.integers(0, NUM), min_size=1, max_size=3).map(sorted))
def test_b23_a_growing_match_and_then_no_blocks(rig: EngineRig, matches: list[int]) -> None:
    request = FakeRequest(rig.next_id, PROMPT)
    rig.next_id += 1
    for match in matches:
        count = asked(rig, request, match * SIZE)
        assert match * SIZE + count == NUM * SIZE
        assert pinned(rig) <= NUM  # never a second time
        assert asked(rig, request, match * SIZE) == count
    rig.iterate(Output())  # it got no blocks
    rig.check_nothing_leased()


def test_b23_refused_blocks_and_asked_in_the_next_iteration(rig: EngineRig) -> None:
    request = FakeRequest(50, PROMPT)
    for _ in range(3):
        assert asked(rig, request, 0) == NUM * SIZE
        rig.iterate(Output())
        rig.check_nothing_leased()
    assert rig.query(request) == NUM * SIZE
    pages = rig.hand_out(NUM + 1)
    rig.wipe(pages)
    rig.scheduler.update_state_after_alloc(request, pages)
    cursor = NUM * SIZE if rig.await_load(request) else 0
    rig.iterate(
        Output([Report(50, list(PROMPT), pages, cursor, 1)]),
        forward=lambda: rig.check(PROMPT, pages, NUM),
    )
    assert rig.scheduler.request_finished(request, pages) is False


def test_b23_asked_again_while_it_waits_for_its_load(rig: EngineRig) -> None:
    request, count, pages = rig.begin(PROMPT)
    assert count == NUM * SIZE
    if request.request_id not in rig.parked:
        rig.iterate(Output([Report(request.request_id, list(PROMPT), pages, 0, 1)]))
        return  # the load is done
    rig.iterate(Output())
    for match in (0, 8, 8, 20):
        assert match + asked(rig, request, match) == NUM * SIZE
        rig.iterate(Output())
    rig.check_nothing_leased()  # every answer was given back, and the load's lease by its worker
    while rig.loading:
        rig.iterate(Output())
    rig.iterate(
        Output([Report(request.request_id, list(PROMPT), pages, NUM * SIZE, 1)]),
        forward=lambda: rig.check(PROMPT, pages, NUM),
    )
