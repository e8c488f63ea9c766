"""P19: ``request_finished`` comes twice, late and without pages, for strangers, or never; pages are
kept by one True at most, and every state ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.wire.process import ServerProcess

CALLS = ("flat", "flat_empty", "grouped", "grouped_empty", "outer_empty", "none")


@pytest.fixture
def rig(server: ServerProcess, tmp_path: Path) -> Iterator[EngineRig]:
    made = EngineRig(server.url, write_model(tmp_path / "m")).register()
    yield made
    made.check_nothing_leased()
    made.close()


def finish(rig: EngineRig, how: str, request: FakeRequest, pages: list[int]) -> bool:
    scheduler: Any = rig.scheduler
    if how.startswith("flat"):
        return bool(scheduler.request_finished(request, [] if how == "flat_empty" else pages))
    groups: Any = {"grouped": [pages], "grouped_empty": [[]], "outer_empty": [], "none": None}[how]
    return bool(scheduler.request_finished_by_layer_group(request, groups))


def computed(rig: EngineRig, seed: int) -> tuple[FakeRequest, list[int]]:
    """A request whose forward was launched, with one token generated."""
    request, offered, pages = rig.begin(tokens(22, seed))
    report = Report(request.request_id, list(request.tokens), pages, 0, 22 - offered)
    rig.iterate(Output([report]), forward=lambda: rig.fill(request.tokens, pages, offered // 4))
    request.tokens.append(1)
    return request, pages


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    calls=st.lists(st.sampled_from(CALLS), min_size=1, max_size=4),
    late=st.lists(st.sampled_from(CALLS), max_size=3),
    seed=st.integers(0, 1 << 30),
)
def test_p19_true_once_at_most(
    rig: EngineRig, calls: list[str], late: list[str], seed: int
) -> None:
    request, pages = computed(rig, seed)
    answers = [finish(rig, how, request, pages) for how in calls]
    assert answers[1:] == [False] * (len(calls) - 1)
    # Pages are kept only if the host still has some, which the first call says.
    assert not answers[0] or calls[0] in ("flat", "grouped")
    rig.collect((request.request_id,) if answers[0] else ())
    if answers[0]:
        rig.settle(request.request_id)
    for how in late:  # an iteration later under overlap, or after the pages went back
        assert not finish(rig, how, request, pages)
    rig.iterate(Output())
    assert rig.saved.count(request.request_id) == int(answers[0])


def test_p19_strangers_and_requests_without_a_forward(rig: EngineRig) -> None:
    for how in CALLS:
        assert not finish(rig, how, FakeRequest(999, tokens(22)), [1, 2])
    request, _, pages = rig.begin(tokens(22))
    for how in CALLS:
        assert not finish(rig, how, request, pages)


def test_p19_never_finished_ends_by_the_hosts_own_reports(
    rig: EngineRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.run_saved(tokens(22))
    monkeypatch.setattr("adapter.requests.EXPIRE_S", 0.0)
    requests = [rig.begin(tokens(22))[0] for _ in range(3)]  # promised, allocated, never reported
    table = rig.scheduler._table
    assert table is not None
    assert len(table.live_keys()) == len(requests)
    assert rig.stats()["pinned_slots"]
    for _ in range(100):
        rig.iterate(Output())
    assert table.live_keys() == []
    rig.check_nothing_leased()
    assert rig.run_saved(tokens(22)).offered == 20


def test_p19_an_id_that_comes_again_is_another_request(rig: EngineRig) -> None:
    request, pages = computed(rig, 7)
    assert finish(rig, "flat", request, pages)
    rig.collect((request.request_id,))
    rig.settle(request.request_id)
    rig.next_id = request.request_id
    again, pages = computed(rig, 8)
    assert again.request_id == request.request_id
    assert finish(rig, "flat", again, pages)
    rig.collect((again.request_id,))
    rig.saved.clear()
    rig.settle(again.request_id)
