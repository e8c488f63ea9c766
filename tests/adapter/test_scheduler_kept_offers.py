"""Aggressive mode: offers settled in a later iteration, in part, or never (host contract §5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapter.enginerig import EngineRig, launched, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.wire.process import ServerProcess

PROMPT = tokens(22)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two busy cores must not turn hits into misses."""
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")


@pytest.fixture(params=[True, False], ids=["kept", "given back"])
def rig(
    request: pytest.FixtureRequest, server: ServerProcess, tmp_path: Path
) -> Iterator[EngineRig]:
    made = EngineRig(server.url, write_model(tmp_path / "m"))
    args: Any = made.scheduler._engine.llm_args
    args.kv_connector_config.aggressive_prefix_budgeting = request.param
    made.register()
    yield made
    made.close()


def keeps(rig: EngineRig) -> bool:
    assert rig.scheduler._table is not None
    return rig.scheduler._table.keeps_offers


def settle(rig: EngineRig, request: FakeRequest, honoured: int) -> list[int]:
    """The host counts on an offer at last."""
    told: Any = request
    told.py_num_connector_matched_tokens = honoured
    pages = rig.hand_out(6)
    rig.wipe(pages)
    rig.scheduler.update_state_after_alloc(told, pages)
    return pages


def test_an_offer_that_waited_is_loaded_where_the_host_keeps_it(rig: EngineRig) -> None:
    rig.run_saved(PROMPT)
    request = FakeRequest(700, list(PROMPT))
    assert rig.query(request) == 20
    for _ in range(3):
        rig.iterate(Output())
    if not keeps(rig):
        rig.check_nothing_leased()
        return
    assert rig.stats()["leases"] == 1
    pages = settle(rig, request, 20)
    report = Report(700, list(PROMPT), pages, 0, 2)
    rig.iterate(Output([report]), forward=lambda: rig.check(PROMPT, pages, 5))
    rig.check_nothing_leased()


def test_what_a_waiting_request_does_not_take_up_is_given_back(rig: EngineRig) -> None:
    rig.run_saved(PROMPT)
    if not keeps(rig):
        return
    request = FakeRequest(701, list(PROMPT))
    assert rig.query(request) == 20
    rig.iterate(Output())
    rig.scheduler.cancel_load(request, 0, 8)  # matched on the device meanwhile
    rig.iterate(Output())
    pages = settle(rig, request, 8)
    rig.scheduler.cancel_load(request, 16, 20)
    report = Report(701, list(PROMPT), pages, 8, 6)

    def forward() -> None:
        rig.fill(PROMPT, pages, 4)

    rig.iterate(Output([report]), forward=forward)
    rig.check_nothing_leased()
    never = FakeRequest(702, list(PROMPT))
    assert rig.query(never) == 20
    rig.iterate(Output())
    rig.scheduler.cancel_load(never, 0, 20)
    rig.check_nothing_leased()


def test_tokens_that_nobody_promises_any_more_are_a_failed_load(rig: EngineRig) -> None:
    rig.run_saved(PROMPT)
    request = FakeRequest(703, list(PROMPT))
    assert rig.query(request) == 20
    rig.iterate(Output())
    if keeps(rig):
        rig.scheduler.cancel_load(request, 0, 20)
    settle(rig, request, 12)
    metadata = rig.scheduler.build_connector_meta(Output())
    assert "request 703: 12 tokens are counted as loaded" in metadata.failure


@pytest.mark.parametrize("is_cached", [True, False])
def test_what_an_earlier_life_counted_on_is_not_taken_for_a_lost_promise(
    rig: EngineRig, is_cached: bool
) -> None:
    """Replayed under its id, and answered with nothing: the host's request still has the number."""
    rig.run_saved(PROMPT)
    request = FakeRequest(706, list(PROMPT))
    assert rig.query(request) == 20
    pages = settle(rig, request, 20)
    rig.iterate(Output([Report(706, list(PROMPT), pages, 0, 2)]))
    if not is_cached:
        rig.scheduler._engine.run_uncached("of this test")
    assert rig.query(request, 20) == 0
    pages = settle(rig, request, 20)
    rig.iterate(Output([Report(706, list(PROMPT), pages, 20, 2)]))  # raises what was lost
    rig.iterate(Output([], [Report(706, [], [], 21, 1)]))


def test_pages_matched_on_the_device_are_not_new_to_an_offer_that_waited(rig: EngineRig) -> None:
    rig.run_saved(PROMPT)
    if not keeps(rig):
        return
    request = FakeRequest(707, list(PROMPT))
    assert rig.scheduler.get_num_new_matched_tokens(request, 8) == (12, False)
    rig.iterate(Output())
    pages = settle(rig, request, 12)
    metadata = rig.scheduler.build_connector_meta(Output())  # not in the batch yet
    assert [new.tolist() for new in metadata.new_pages] == [pages[2:]]


def test_tokens_that_were_never_promised_fail_where_a_report_counts_them(rig: EngineRig) -> None:
    request = FakeRequest(707, list(PROMPT))
    assert rig.query(request) == 0
    pages = settle(rig, request, 12)
    metadata = rig.scheduler.build_connector_meta(Output([Report(707, list(PROMPT), pages, 0, 10)]))
    assert "12 tokens are counted as loaded, and none were promised" in metadata.failure


def test_no_more_may_be_counted_on_than_is_left_of_an_offer(rig: EngineRig) -> None:
    rig.run_saved(PROMPT)
    request = FakeRequest(704, list(PROMPT))
    assert rig.query(request) == 20
    rig.scheduler.cancel_load(request, 8, 20)
    settle(rig, request, 12)
    metadata = rig.scheduler.build_connector_meta(Output())
    assert "12 tokens are counted as loaded, and only 8 are offered" in metadata.failure


def test_an_offer_is_for_the_prompt_that_was_asked_about(rig: EngineRig) -> None:
    rig.run_saved(PROMPT)
    request = FakeRequest(705, list(PROMPT))
    assert rig.query(request) == 20
    rig.iterate(Output())
    settle(rig, FakeRequest(705, [*PROMPT[:-1], PROMPT[-1] + 1]), 20)
    metadata = rig.scheduler.build_connector_meta(Output())
    assert "20 tokens are counted as loaded, and no offer stands" in metadata.failure


def test_offers_that_are_kept_are_few(rig: EngineRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapter.requests.MAX_OPEN_OFFERS", 2)
    rig.run_saved(PROMPT)
    asked = [FakeRequest(710 + number, list(PROMPT)) for number in range(3)]
    offered = [rig.query(request) for request in asked]
    assert offered == ([20, 20, 0] if keeps(rig) else [20, 20, 20])
    for request in asked:
        rig.scheduler.cancel_load(request, 0, 20)
    assert rig.query(FakeRequest(720, list(PROMPT))) == 20
