"""What the scheduler keeps from one hook to the next: its budget, its offers, names, and ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapter.enginerig import SIZE, EngineRig, launched, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.wire.process import ServerProcess


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture
def rig(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineRig]:
    # Two busy cores must not turn hits into misses.
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    made = EngineRig(server.url, write_model(tmp_path / "m")).register()
    yield made
    made.close()


def test_a_budget_that_was_spent_is_whole_in_the_next_iteration(rig: EngineRig) -> None:
    rig.run_hit(tokens(22), 20)
    rig.scheduler._budget.exhaust()
    request = FakeRequest(50, tokens(22))
    assert rig.query(request) == 0
    rig.iterate(Output())
    assert rig.query(request) == 20


def test_an_offer_is_open_from_its_question_until_its_load_began(rig: EngineRig) -> None:
    rig.run_hit(tokens(22), 20)
    assert rig.worker.link is not None
    offers, joined = rig.worker.link.offers, rig.worker.link.joined
    assert joined is not None
    watch = offers.watch(joined.epoch, 0)
    seen = [offers.is_over(watch, 0, 1 << 60)]
    request, _, pages = rig.begin(tokens(22))
    seen.append(offers.is_over(watch, 0, 1 << 60))
    metadata = rig.scheduler.build_connector_meta(Output())  # not in the batch yet
    assert metadata.still_open == (joined.epoch,)
    rig.worker.bind_connector_meta(metadata)
    rig.worker.start_load_kv(rig.stream)
    seen.append(offers.is_over(watch, 0, 1 << 60))
    report = Report(request.request_id, tokens(22), pages, 0, 2)
    metadata = rig.scheduler.build_connector_meta(Output([report]))
    rig.worker.bind_connector_meta(metadata)
    seen.append(offers.is_over(watch, 0, 1 << 60))
    rig.worker.start_load_kv(rig.stream)
    seen.append(offers.is_over(watch, 0, 1 << 60))
    assert seen == [True, False, False, False, True]


def test_when_caching_ends_the_other_ranks_hear_that_no_save_may_go_on(rig: EngineRig) -> None:
    request, _, pages = rig.begin(tokens(22))
    table = rig.scheduler._table
    assert table is not None
    assert rig.worker.link is not None
    provider = rig.worker.link._orders.live_requests
    assert provider is not None
    assert list(provider()) == table.live_keys()  # what heartbeats tell
    rig.scheduler._engine.run_uncached("of this test")
    report = Report(request.request_id, tokens(22), pages, 0, 22)
    metadata = rig.scheduler.build_connector_meta(Output([report]))
    assert metadata.names == ()
    assert metadata.ended.tolist() == table.live_keys()


def test_what_the_server_holds_is_not_named_again(rig: EngineRig) -> None:
    prompt = tokens(22)
    rig.run_hit(prompt, 20)
    request, offered, pages = rig.begin([*prompt, *tokens(10, seed=3)])
    report = Report(request.request_id, list(request.tokens), pages, 0, 32 - offered)
    metadata = rig.scheduler.build_connector_meta(Output([report]))
    (names,) = metadata.names
    assert (names.first_chunk, len(names.keys) // 16) == (offered // SIZE, 8 - offered // SIZE)
    rig.worker.bind_connector_meta(metadata)
    rig.worker.start_load_kv(rig.stream)


def test_a_query_that_fails_leaves_nothing_promised(rig: EngineRig) -> None:
    class Unreadable(FakeRequest):
        def get_tokens(self, beam: int) -> list[int]:
            raise RuntimeError(beam)

    rig.run_hit(tokens(22), 20)
    assert rig.query(FakeRequest(5, tokens(22))) == 20
    assert rig.query(Unreadable(5, [])) == 0
    table = rig.scheduler._table
    assert table is not None
    assert table.live_keys() == []
    rig.check_nothing_leased()


def test_media_without_digests_is_neither_asked_about_nor_named(rig: EngineRig) -> None:
    prompt = tokens(22)
    rig.run_hit(prompt, 20)
    asked = rig.stats()["lookups"]
    media: dict[str, Any] = {"multimodal_positions": [4], "multimodal_lengths": [8]}
    request, offered, pages = rig.begin(prompt, **media)
    assert offered == 0
    state = rig.scheduler._state_of(request)
    assert state is not None
    assert not state.asked
    report = Report(request.request_id, prompt, pages, 0, 22)
    metadata = rig.scheduler.build_connector_meta(Output([report]))
    assert metadata.names == ()
    rig.worker.bind_connector_meta(metadata)
    rig.worker.start_load_kv(rig.stream)
    rig.scheduler.update_state_after_alloc(FakeRequest(60, prompt, **media), pages)  # unqueried
    metadata = rig.scheduler.build_connector_meta(Output([Report(60, prompt, pages, 0, 22)]))
    assert metadata.names == ()
    assert rig.stats()["lookups"] == asked


def test_an_id_that_comes_back_without_a_query_is_read_anew(rig: EngineRig) -> None:
    rig.query(FakeRequest(5, tokens(22, seed=1)))
    rig.scheduler.build_connector_meta(Output())  # it got no pages, and was cancelled unheard
    prompt = tokens(22)
    pages = rig.hand_out(6)
    rig.scheduler.update_state_after_alloc(FakeRequest(5, prompt), pages)
    metadata = rig.scheduler.build_connector_meta(Output([Report(5, prompt, pages, 0, 22)]))
    (names,) = metadata.names
    assert len(names.keys) // 16 == 5


def test_pages_that_do_not_fit_the_prompt_break_what_was_promised_for_it(rig: EngineRig) -> None:
    rig.run_hit(tokens(22), 20)
    request = FakeRequest(50, tokens(22))
    assert rig.query(request) == 20
    rig.scheduler.update_state_after_alloc(request, rig.hand_out(3))
    assert "block size" in rig.scheduler._engine.uncached_because
    assert "block size" in rig.scheduler.build_connector_meta(Output()).failure
