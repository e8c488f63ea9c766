"""The scheduler's hooks against a real server: consistent, bounded, never raising."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.scheduler import KvkeepConnectorScheduler
from adapter.trtllm_fallback import RequestDataE1
from protocol.errors import ConfigError
from tests.adapter.enginerig import SIZE, EngineRig, launched, write_model
from tests.adapter.hostlike import Args, ConnectorSettings, FakeRequest, Output, Report, tokens
from tests.wire.process import ServerProcess, wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two busy cores must not turn hits into misses; budgets have tests of their own."""
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")


@pytest.fixture
def rig(server: ServerProcess, tmp_path: Path) -> Iterator[EngineRig]:
    made = EngineRig(server.url, write_model(tmp_path / "m")).register()
    yield made
    made.close()


def stats(rig: EngineRig) -> dict[str, int]:
    """The server's counters."""
    from protocol.messages import Stats, StatsReply

    running = rig.scheduler._engine.running
    assert running is not None
    channel = running.link.open_channel()
    try:
        reply = channel.call(Stats(), 5.0)
    finally:
        channel.close()
    assert isinstance(reply, StatsReply)
    return reply.values


def test_a_prompt_is_saved_and_then_hit(rig: EngineRig) -> None:
    prompt = tokens(22)
    assert rig.run_saved(prompt).offered == 0
    assert rig.run_saved(prompt).offered == 20
    assert rig.run_saved([*prompt, 1, 2, 3]).offered == 20
    assert rig.run_saved(prompt[:20]).offered == 16  # one token is left to compute
    assert rig.run_saved(prompt[:19]).offered == 16
    assert rig.run_saved(tokens(22, seed=5)).offered == 0


def test_the_query_line(rig: EngineRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kvkeep")
    rig.run_saved(tokens(22))
    rig.run_saved(tokens(22))
    lines = [r.getMessage() for r in caplog.records if "lmcache_cached" in r.getMessage()]
    assert "lmcache_cached=0 new_matched=0" in lines[0]
    assert "lmcache_cached=20 new_matched=20" in lines[1]
    assert len(lines) == 2


def test_scopes_do_not_mix(rig: EngineRig) -> None:
    prompt = tokens(22)
    scopes: list[dict[str, Any]] = [
        {},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"lora_task_id": 1},
        {"lora_task_id": 2, "cache_salt": "a"},
        {
            "multimodal_hashes": [[1] * 8],
            "multimodal_positions": [1],
            "multimodal_lengths": [2],
        },
    ]
    for scope in scopes:
        assert rig.run_saved(prompt, **scope).offered == 0
    for scope in scopes:
        assert rig.run_saved(prompt, **scope).offered == 20
    hidden = {"multimodal_positions": [1], "multimodal_lengths": [2]}
    for _ in range(2):
        outcome = rig.run_saved(prompt, **hidden)
        assert (outcome.offered, outcome.kept) == (0, False)


def test_repeated_queries_are_consistent_and_return_everything(rig: EngineRig) -> None:  # B23
    prompt = tokens(41)
    rig.run_saved(prompt)
    before = stats(rig)
    request = FakeRequest(77, prompt)
    assert rig.query(request) == 40
    assert rig.query(request) == 40
    assert rig.query(request, 8) == 32
    assert rig.query(request, 12) == 28
    assert rig.query(request, 13) == 0  # inside a block
    rig.iterate(Output())
    assert rig.query(request, 12) == 28
    rig.iterate(Output())  # never allocated
    names = [name for name in before if "pin" in name or "lease" in name]
    assert names
    assert wait_until(lambda: all(stats(rig)[n] <= before[n] for n in names if "total" not in n))


def test_odd_device_matches_decline_but_save(rig: EngineRig) -> None:  # host contract rule 2
    prompt = tokens(22)
    request = FakeRequest(50, prompt)
    assert rig.query(request, 5) == 0
    assert rig.query(request, 20) == 0
    assert rig.query(request, 21) == 0


def test_before_registration_nothing_is_promised(server: ServerProcess, tmp_path: Path) -> None:
    rig = EngineRig(server.url, write_model(tmp_path / "m"))
    request = FakeRequest(1, tokens(22))
    assert rig.query(request) == 0
    rig.scheduler.update_state_after_alloc(request, [1, 2, 3, 4, 5, 6])
    rig.iterate(Output([Report(1, tokens(22), [1, 2, 3, 4, 5, 6], 0, 22)]))
    assert rig.scheduler.request_finished(request, [1, 2, 3, 4, 5, 6]) is False
    rig.scheduler.wait_for_initialization()


def test_a_wrong_block_size_is_noticed_at_the_first_allocation(
    rig: EngineRig, caplog: pytest.LogCaptureFixture
) -> None:
    request = FakeRequest(1, tokens(22))
    rig.query(request)
    rig.scheduler.update_state_after_alloc(request, [1, 2, 3])
    assert "block size" in caplog.text
    rig.iterate(Output([Report(1, tokens(22), [1, 2, 3], 0, 22)]))
    assert rig.query(FakeRequest(2, tokens(22))) == 0
    assert rig.scheduler._engine.running is None
    assert rig.worker.counters()["open_saves"] == 0


def test_requests_never_queried_are_saved_too(rig: EngineRig) -> None:
    request, prompt = FakeRequest(9, tokens(22)), tokens(22)
    pages = rig.hand_out(6)
    rig.scheduler.update_state_after_alloc(request, pages)
    rig.iterate(
        Output([Report(9, prompt, pages, 0, 22)]), forward=lambda: rig.fill(prompt, pages, 0)
    )
    request.tokens.append(1)
    assert rig.scheduler.request_finished(request, pages) is True
    rig.collect((9,))
    rig.settle(9)
    assert rig.run_saved(prompt).offered == 20


def test_finishing_twice_late_or_unknown(rig: EngineRig) -> None:  # P19
    outcome = rig.run(tokens(22))
    assert outcome.kept
    request = FakeRequest(1, [*tokens(22), 1])
    assert rig.scheduler.request_finished(request, []) is False
    assert rig.scheduler.request_finished(FakeRequest(999, tokens(4)), [1]) is False
    rig.settle(1)


def test_a_request_without_a_generated_token_is_not_held(rig: EngineRig) -> None:
    request, _, pages = rig.begin(tokens(22))
    rig.iterate(Output([Report(request.request_id, tokens(22), pages, 0, 22)]))
    table = rig.scheduler._table
    assert table is not None
    (key,) = table.live_keys()
    assert rig.scheduler.request_finished(request, pages) is False
    metadata = rig.scheduler.build_connector_meta(Output())
    assert metadata.ended.tolist() == [key]  # the other ranks hear of it in no other way


def test_hooks_swallow_what_they_cannot_read(rig: EngineRig) -> None:
    broken: Any = object()
    assert rig.scheduler.get_num_new_matched_tokens(broken, 0) == (0, False)
    big = FakeRequest(3, [1 << 40] * 8)
    assert rig.scheduler.get_num_new_matched_tokens(big, 0) == (0, False)
    rig.scheduler.update_state_after_alloc(broken, [1])
    assert rig.scheduler.request_finished(broken, [1]) is False
    metadata = rig.scheduler.build_connector_meta(broken)
    assert metadata.failure == ""
    counts = rig.worker.counters()
    assert counts["scheduler_query_errors"] == 2
    table = rig.scheduler._table
    assert table is not None

    def fail(key: int) -> None:
        raise RuntimeError(key)

    table.on_end = fail
    assert rig.query(FakeRequest(4, tokens(8))) == 0
    assert rig.scheduler.get_num_new_matched_tokens(FakeRequest(4, [1 << 40]), 0) == (0, False)
    assert table.live_keys() == []
    assert counts["scheduler_metadata_errors"] == 1


def test_a_report_not_understood_fails_an_open_promise(rig: EngineRig) -> None:
    prompt = tokens(22)
    rig.run_saved(prompt)
    rig.begin(prompt)
    broken: Any = object()
    metadata = rig.scheduler.build_connector_meta(broken)
    assert "planned" in metadata.failure
    assert "not understood" in rig.scheduler._engine.uncached_because


def test_layer_group_forms_fold_one_group(rig: EngineRig) -> None:
    prompt = tokens(22)
    request = FakeRequest(4, prompt)
    rig.query(request)
    pages = rig.hand_out(6)
    rig.scheduler.update_state_after_alloc_by_layer_group(request, [pages])
    rig.iterate(
        Output([Report(4, prompt, pages, 0, 22)]), forward=lambda: rig.fill(prompt, pages, 0)
    )
    request.tokens.append(1)
    assert rig.scheduler.request_finished_by_layer_group(request, [pages]) is True
    assert rig.scheduler.request_finished_by_layer_group(request, []) is False
    rig.collect((4,))
    rig.settle(4)
    assert rig.scheduler.request_finished_by_layer_group(request, [[1], [2]]) is False


@pytest.mark.parametrize("url", ["", "localhost:1", "tcp://::1:5555"])
def test_odd_urls_fail_at_construction(url: str) -> None:  # B46
    with pytest.raises(ConfigError):
        KvkeepConnectorScheduler(Args(kv_connector_config=ConnectorSettings(url)))


def test_blocks_of_the_rig() -> None:
    assert Args().kv_cache_config.tokens_per_block == SIZE


def test_no_load_beside_a_partial_match_of_the_same_iteration(rig: EngineRig) -> None:
    # Its page is copied on a stream of the host's own, maybe out of a page that the next request
    # is given: host contract §5, "Streams".
    prompt = tokens(22)
    rig.run_saved(prompt)
    early = FakeRequest(501, list(prompt))
    assert rig.query(early) == 20
    assert rig.query(FakeRequest(500, tokens(22, seed=9)), 3) == 0
    assert rig.query(FakeRequest(502, list(prompt))) == 0
    assert rig.query(early) == 0  # asked again: its pages would be handed out after that copy
    rig.iterate(Output())
    assert rig.query(FakeRequest(503, list(prompt))) == 20
    rig.iterate(Output())
    assert wait_until(lambda: stats(rig)["leases"] == 0, 5)


def test_hooks_of_several_layer_groups_do_not_raise(rig: EngineRig) -> None:
    request = FakeRequest(500, tokens(22))
    rig.query(request)
    rig.scheduler.update_state_after_alloc_by_layer_group(request, [[1], [2]])
    assert rig.scheduler.request_finished_by_layer_group(request, [[1], [2]]) is False
    assert rig.scheduler.request_finished_by_layer_group(request, []) is False
    assert rig.worker.counters()["scheduler_alloc_errors"] == 1


def test_requests_that_share_a_prefix_load_in_the_same_iteration(rig: EngineRig) -> None:
    # The host may match pages of the first for the third before they are loaded: loads are
    # complete before the forward, so what it computes behind them is right.
    prompt = tokens(22)
    rig.run_saved(prompt)
    first, first_offer, first_pages = rig.begin(prompt)
    second, second_offer, second_pages = rig.begin([*prompt, 1, 2, 3])
    third = FakeRequest(900, list(prompt))
    third_offer = rig.query(third, 8)
    third_pages = [*first_pages[:2], *rig.hand_out(4)]
    rig.pages[third_pages[2:]] = 0xFF
    rig.scheduler.update_state_after_alloc(third, third_pages)
    assert (first_offer, second_offer, third_offer) == (20, 20, 12)

    def forward() -> None:
        rig.check(prompt, first_pages, 5)
        rig.check(prompt, second_pages, 5)
        rig.check(prompt, third_pages, 5)

    rig.iterate(
        Output(
            [
                Report(first.request_id, list(first.tokens), first_pages, 0, 2),
                Report(second.request_id, list(second.tokens), second_pages, 0, 5),
                Report(900, list(prompt), third_pages, 8, 2),
            ]
        ),
        forward=forward,
    )
    for request in (first, second, third):
        rig.scheduler.request_finished(request, [])
    rig.iterate(Output())
    assert wait_until(lambda: stats(rig)["leases"] == 0, 5)


def test_attention_data_parallelism_is_declared() -> None:
    assert KvkeepConnectorScheduler.supports_attention_dp is True


def test_cancelled_and_reset_offers_are_given_back(rig: EngineRig) -> None:  # host contract §3, E4
    prompt = tokens(22)
    rig.run_saved(prompt)
    request = FakeRequest(600, list(prompt))
    assert rig.query(request) == 20
    rig.scheduler.cancel_load(request, 12, 20)
    assert rig.query(request) == 12
    rig.scheduler.cancel_load(request, 0, 12)
    rig.check_nothing_leased()
    assert rig.query(request) == 20
    rig.scheduler.request_reset(request)
    rig.check_nothing_leased()
    broken: Any = object()
    rig.scheduler.cancel_load(broken, 0, 4)
    rig.scheduler.request_reset(broken)
    rig.scheduler.cancel_load(FakeRequest(601, prompt), 0, 4)


def test_a_reset_request_comes_again_under_its_id(rig: EngineRig) -> None:
    prompt = tokens(22)
    rig.run_saved(prompt)
    request, offered, pages = rig.begin(prompt)
    report = Report(request.request_id, list(prompt), pages, 0, 2)
    rig.iterate(Output([report]), forward=lambda: rig.check(prompt, pages, 5))
    rig.scheduler.request_reset(request)
    assert rig.query(request) == offered == 20
    pages = rig.hand_out(6)
    rig.wipe(pages)
    rig.scheduler.update_state_after_alloc(request, pages)
    report = Report(request.request_id, list(prompt), pages, 0, 2)
    rig.iterate(Output([report]), forward=lambda: rig.check(prompt, pages, 5))
    rig.check_nothing_leased()


def test_loads_that_are_waited_for(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_CONFORMANCE_EPOCH", "E4")
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    prompt = tokens(22)
    assert rig.scheduler.get_num_new_matched_tokens(FakeRequest(1, prompt), 0) == (0, False)
    rig.next_id = 2
    rig.run_saved(prompt)
    assert rig.scheduler.get_num_new_matched_tokens(FakeRequest(900, prompt), 0) == (20, True)
    assert rig.run_saved(prompt).offered == 20
    rig.check_nothing_leased()
    rig.close()


def test_an_unaligned_match_is_explained_once(
    rig: EngineRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvkeep")
    for number in range(3):
        assert rig.query(FakeRequest(700 + number, tokens(22)), 5) == 0
    assert caplog.text.count("enable_partial_reuse=False") == 1
    assert rig.worker.counters()["partial_matches"] == 3


def test_no_report_at_all_is_an_empty_iteration(rig: EngineRig) -> None:
    assert rig.scheduler.build_connector_meta(None).alive.size == 0
    assert "scheduler_metadata_errors" not in rig.worker.counters()


def test_a_leader_tells_the_other_ranks_what_to_join(server: ServerProcess, tmp_path: Path) -> None:
    args = Args(tensor_parallel_size=2)
    rig = EngineRig(server.url, write_model(tmp_path / "m"), args=args, page_shape=(2, 2, 32))
    assert rig.scheduler.build_connector_meta(Output()).engine is None
    rig.register()
    prompt = tokens(22)
    request, offered, pages = rig.begin(prompt)
    assert offered == 0  # a rank is missing
    report = Report(request.request_id, prompt, pages, 0, 22)
    for output in (Output([report]), Output()):
        card = rig.scheduler.build_connector_meta(output).engine
        assert card is not None
        assert card == rig.scheduler._engine.card
        assert (card.instance, card.url) == (rig.scheduler._engine.instance, server.url)
    rig.close()


def test_reports_of_the_first_epoch_have_five_fields(rig: EngineRig) -> None:
    prompt = tokens(22)
    request, _, pages = rig.begin(prompt)
    report: Any = RequestDataE1(request.request_id, prompt, pages, 0, 22)
    later: Any = RequestDataE1(request.request_id, [5], [], 22, 1)
    for output in (Output([report]), Output(cached_requests=[later])):
        rig.iterate(output)
    assert rig.scheduler.request_finished(request, pages) is False
    assert "scheduler_metadata_errors" not in rig.worker.counters()


def test_saves_of_pages_that_go_back_end_without_another_iteration(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "0")
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    assert not rig.run(tokens(22)).kept
    assert wait_until(lambda: rig.worker.counters()["open_saves"] == 0)  # an idle engine
    assert wait_until(lambda: stats(rig)["stores"] == 0)
    rig.close()
