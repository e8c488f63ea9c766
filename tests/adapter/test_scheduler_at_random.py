"""Whatever the host calls, in whatever order: promises hold, and everything is given back once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.loadmode import LoadMode
from tests.adapter.askhost import AskHost, ask_host
from tests.adapter.hostlike import FakeRequest, tokens
from tests.adapter.responder import until
from tests.adapter.unruly import UnrulyHost

CASES = {
    "v1": ((0,), 1, False, LoadMode.SYNC, True),
    "v1_chunks": ((0,), 2, False, LoadMode.SYNC, True),
    "v1_waiting": ((0,), 1, False, LoadMode.ASYNC, True),
    "v2": ((0,), 1, True, LoadMode.SYNC, True),
    "v2_waiting": ((0,), 2, True, LoadMode.ASYNC, True),
    "v2_groups": ((0, 0), 1, True, LoadMode.LAYERWISE, True),
    "v2_windows": ((0, 12), 1, True, LoadMode.SYNC, True),
    "v2_windows_whole": ((0, 12), 1, True, LoadMode.SYNC, False),
    "v2_windows_chunks": ((0, 12), 2, True, LoadMode.ASYNC, True),
}


@pytest.fixture(scope="module", params=CASES)
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AskHost]:
    patch = pytest.MonkeyPatch()
    patch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    patch.setattr("adapter.requests.EXPIRE_S", -1.0)
    patch.setattr("adapter.requests.EXPIRE_ITERATIONS", 4)
    folder: Path = tmp_path_factory.mktemp("k")
    with ask_host(folder, *CASES[request.param]) as made:
        yield made
    patch.undo()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 40))
def test_any_calls(host: AskHost, seed: int, steps: int) -> None:
    rng = random.Random(seed)
    host.begin()
    for _ in range(steps):
        host.step(rng)
    host.end()


def test_a_lease_that_could_not_be_ended_at_once_ends_with_its_request(
    host: AskHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapter.offers.OfferDesk._end_rest", lambda *_: None)
    host.begin()
    request = FakeRequest(1, tokens(50))
    for _ in range(40):
        host.scheduler.get_num_new_matched_tokens(request, 0)
        if host.counting.open:
            break
        host.scheduler.request_reset(request)
    assert host.counting.open
    assert host.scheduler.request_finished(request, []) is False
    until(lambda: not host.counting.open)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 80))
def test_hooks_in_no_order(host: AskHost, seed: int, steps: int) -> None:
    unruly = UnrulyHost(host, random.Random(seed))
    for _ in range(steps):
        unruly.step()
    unruly.end()
