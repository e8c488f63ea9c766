"""What can happen to a request besides a plain run (host contract §6)."""

import itertools
import time
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.errors import (
    ConnectorContractError,
    RequestCancelledError,
)
from adapter.conformance.host.llm_args import AggressiveConnectorConfig, LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.payload import PayloadModel
from tests.adapter.conformance.host.connectors import cache_config, connector_config
from tests.adapter.conformance.host.lifecycles import (
    WAIT_S,
    calls_of,
    details_of,
    engine,
    names_of,
    prompt,
    until,
)

pytestmark = pytest.mark.torch

NAMES = itertools.count()


def parked(host: HostEngine) -> Any:
    """A request whose asynchronous load has been announced and does not end."""
    handle = host.submit(prompt(20), 3)
    until(lambda: any(started for _, started in details_of(host, "get_finished")))
    return handle


@pytest.mark.parametrize("epoch", ["E2", "E3"])
def test_cancelling_frees_pages_under_a_running_load_in_late_e2_and_e3(epoch: Any) -> None:
    with engine("rule://async", epoch=epoch) as host:
        handle = parked(host)
        host.cancel(handle)
        with pytest.raises(RequestCancelledError):
            handle.result(WAIT_S)
        # The load still runs: whatever it writes now, it writes into pages of others.
        assert (host.stats().num_available_blocks, host._executor.ledger.num_loading) == (32, 1)
        assert not {"request_finished", "cancel_load"} & set(names_of(host))
        host.connector.worker.answers = [([], [1])]
        host.connector.scheduler.rule = "nothing"
        assert len(host.submit(prompt(4, seed=2), 1).result(WAIT_S).tokens) == 1
        until(lambda: host._executor.ledger.num_loading == 0)
        assert host.error is None


def test_the_first_epoch_asks_whether_a_cancelled_requests_pages_are_needed() -> None:
    with engine("rule://async", epoch="E1") as host:
        handle = parked(host)
        host.cancel(handle)
        with pytest.raises(RequestCancelledError):
            handle.result(WAIT_S)
    ((request_id, pages),) = details_of(host, "request_finished")
    assert (request_id, len(pages)) == (1, 3)


def test_the_newest_epoch_hands_the_offer_back_and_waits_for_the_load() -> None:
    with engine("rule://async", epoch="E4") as host:
        handle = parked(host)
        host.cancel(handle)
        until(lambda: "cancel_load" in names_of(host))
        before = host.hooks.num_calls("get_finished")
        until(lambda: host.hooks.num_calls("get_finished") > before + 5)
        assert not handle.done()
        assert host.stats().num_available_blocks == 32 - 3
        host.cancel(handle)  # asked again: handed back once
        host.connector.worker.answers = [([], [1])]
        with pytest.raises(RequestCancelledError):
            handle.result(WAIT_S)
        assert host.stats().num_available_blocks == 32
    assert details_of(host, "cancel_load") == [(1, 0, 8)]
    assert "request_finished" not in names_of(host)


def test_a_waiting_request_that_is_cancelled_gives_its_offer_back() -> None:
    config = connector_config("Recording", "rule://async")
    args = LlmArgs(
        "model",
        kv_cache_config=cache_config(8),
        kv_connector_config=AggressiveConnectorConfig(
            **vars(config), aggressive_prefix_budgeting=True
        ),
    )
    options = HostOptions(epoch="E4", layout="v2")
    with HostEngine(args, 3, model=PayloadModel(8, num_layers=2), options=options) as host:
        first = parked(host)  # has all pages
        second = host.submit(prompt(20, 1), 1)
        until(lambda: len(details_of(host, "query")) > 1)
        host.cancel(second)
        with pytest.raises(RequestCancelledError):
            second.result(WAIT_S)
        assert (second.request_id, 0, 8) in details_of(host, "cancel_load")
        assert second.request_id not in [number for number, _ in details_of(host, "alloc")]
        host.cancel(first)
        host.connector.worker.answers = [([], [first.request_id])]
        with pytest.raises(RequestCancelledError):
            first.result(WAIT_S)


def test_at_shutdown_the_newest_epoch_waits_too() -> None:
    host = engine("rule://async", epoch="E4")
    handle = parked(host)
    worker = host.connector.worker
    original = worker.get_finished

    def land_when_cancelled(*announced: Any) -> Any:
        original(*announced)
        return [], [1] if "cancel_load" in names_of(host) else []

    worker.get_finished = land_when_cancelled
    host.shutdown()
    with pytest.raises(RequestCancelledError, match="shutdown"):
        handle.result(WAIT_S)
    assert host.stats().num_available_blocks == 32
    # Both classes, after the executor ended.
    assert names_of(host)[-2:] == ["shutdown", "shutdown"]


def test_under_attention_dp_a_cancel_waits_for_the_transfer() -> None:
    args = {"enable_attention_dp": True}
    with engine("rule://async", epoch="E3", args=args) as host:
        handle = parked(host)
        host.cancel(handle)
        before = host.hooks.num_calls("get_finished")
        until(lambda: host.hooks.num_calls("get_finished") > before + 5)
        assert not handle.done()
        host.connector.worker.answers = [([], [1])]
        with pytest.raises(RequestCancelledError):
            handle.result(WAIT_S)
    assert "cancel_load" not in names_of(host)  # E4's


def test_the_newest_epoch_polls_while_idle_and_ignores_unknown_ids() -> None:
    with engine("rule://keep", epoch="E4") as host:
        host.submit(prompt(10), 1).result(WAIT_S)
        before = host.hooks.num_calls("get_finished")
        until(lambda: host.hooks.num_calls("get_finished") > before + 5)
        assert host.stats().num_saving_pages == 2
        host.connector.worker.answers = [([77], [78]), ([1, 1], [])]
        until(lambda: host.stats().num_saving_pages == 0)
        settled = host.hooks.num_calls("get_finished")
        time.sleep(0.05)  # it is the absence of polls that is shown: nothing is pending
        assert host.hooks.num_calls("get_finished") <= settled + 1
        assert host.error is None


def test_a_context_only_request_ends_with_its_first_token() -> None:
    with engine() as host:
        result = host.submit(prompt(20), 9, context_only=True).result(WAIT_S)
        until(lambda: "request_finished" in names_of(host))
    assert len(result.tokens) == 1
    names = names_of(host)
    assert names.count("wait_for_save") == names.count("request_finished") == 1


def test_a_generation_only_request_is_an_error_with_a_connector_on_v1() -> None:
    with engine() as host, pytest.raises(ConnectorContractError, match="generation-only"):
        host.submit(prompt(20), 1, generation_only=True)


@pytest.mark.parametrize("epoch", ["E1", "E2", "E3"])
def test_older_epochs_call_none_of_the_newest_methods(epoch: Any) -> None:
    with engine("rule://async", epoch=epoch) as host:
        host.cancel(parked(host))
        until(lambda: not host._executor._scheduler.active)
    assert not {"cancel_load", "request_reset", "shutdown"} & set(names_of(host))


def replays(host: HostEngine) -> list[int]:
    """Ids of requests that were queried again."""
    asked = [request.request_id for request, _ in details_of(host, "query")]
    return [request_id for request_id in set(asked) if asked.count(request_id) > 1]


def saved_an_iteration_later(host: HostEngine) -> None:
    worker = host.connector.worker
    original, due = worker.get_finished, []  # type: ignore[var-annotated]

    def get_finished(finished: list[int], started: list[int]) -> Any:
        original(finished, started)
        done = list(due)
        due[:] = finished
        return done, []

    worker.get_finished = get_finished


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("epoch", "direct", "keep"),
    [("E3", False, False), ("E4", False, False), ("E4", True, False), ("E4", True, True)],
)
def test_preempted_requests_replay_and_the_newest_epoch_says_so_in_one_way(
    epoch: Any, direct: bool, keep: bool, overlap: bool
) -> None:
    asked = [prompt(20), prompt(20, 1), prompt(20, 2)]
    both: dict[str, Any] = {"epoch": epoch, "layout": "v2", "overlap": overlap}
    with engine(num_blocks=64, **both) as wide:
        right = [wide.submit(tokens, 30).result(WAIT_S).tokens for tokens in asked]
        assert not replays(wide)
    name = "keep" if keep else f"preempt{next(NAMES)}"
    with engine(f"rule://{name}", num_blocks=9, direct_preemption=direct, **both) as host:
        saved_an_iteration_later(host)
        handles = [host.submit(tokens, 30) for tokens in asked]
        assert [handle.result(WAIT_S).tokens for handle in handles] == right
        until(lambda: host.stats().num_available_blocks + host.stats().num_saving_pages == 9)
        host.allocator.check_integrity()
    assert replays(host)
    finished = [request_id for request_id, _ in details_of(host, "request_finished")]
    resets = details_of(host, "request_reset")
    if epoch == "E4" and not direct:
        assert set(resets) == set(replays(host))
    else:
        assert resets == []
    for request_id in replays(host):
        assert (finished.count(request_id) > 1) == direct
        reports = [
            data
            for output in details_of(host, "build")
            for data in output.new_requests
            if data.request_id == request_id
        ]
        # New again, with all it knows: what it generated is part of its prompt now.
        assert len(reports[-1].new_tokens) > 20
    if keep:
        names = [(name, detail) for name, _, detail in calls_of(host)]
        for request_id in replays(host):
            first = names.index(
                (
                    "request_finished",
                    next(d for n, d in names if n == "request_finished" and d[0] == request_id),
                )
            )
            again = [n for n, d in names[first:] if n in ("query", "get_finished")]
            assert again.index("query") > again.index("get_finished")


def test_a_replay_that_waits_for_a_save_can_be_cancelled() -> None:
    with engine(
        "rule://keep", num_blocks=7, epoch="E4", layout="v2", direct_preemption=True
    ) as host:
        handles = [host.submit(prompt(20, seed), 30) for seed in range(2)]
        finisher = host._executor.finisher
        until(lambda: bool(finisher.replaying) or host.error is not None)
        (waiting,) = finisher.replaying
        host.cancel(handles[waiting - 1])
        until(lambda: finisher.num_cancelling == 1)
        host.connector.worker.answers = [([waiting], [])]
        with pytest.raises(RequestCancelledError):
            handles[waiting - 1].result(WAIT_S)
