from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from adapter.conformance.host.llm_args import (
    AggressiveConnectorConfig,
    KvCacheConfig,
    LlmArgs,
)
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.support import settle

GOOD = LlmArgs("model", kv_cache_config=KvCacheConfig(tokens_per_block=8))


def cache(**changes: Any) -> dict[str, Any]:
    return {"kv_cache_config": replace(GOOD.kv_cache_config, **changes)}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"context_parallel_size": 2}, "context_parallel_size"),
        ({"max_beam_width": 2}, "max_beam_width"),
        ({"enable_attention_dp": True}, "enable_attention_dp"),
        (cache(use_kv_cache_manager_v2=True), "use_kv_cache_manager_v2"),
        (cache(max_attention_window=(64,)), "max_attention_window"),
        (cache(host_cache_size=1 << 20), "host_cache_size"),
        (cache(disk_cache_size=1 << 20), "disk_cache_size"),
        ({"max_num_tokens": 4}, "max_num_tokens is 4, below one block of 8"),
    ],
)
def test_what_the_host_cannot_do_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        settle(replace(GOOD, **changes), HostOptions())


def test_overlap_is_off_if_either_side_says_so() -> None:
    assert settle(GOOD, HostOptions()).overlap
    assert not settle(GOOD, HostOptions(overlap=False)).overlap
    assert not settle(replace(GOOD, disable_overlap_scheduler=True), HostOptions()).overlap
    assert settle(replace(GOOD, **cache(host_cache_size=0)), HostOptions(epoch="E1")).epoch == "E1"


LATE = replace(GOOD, enable_attention_dp=True)
V2 = replace(GOOD, **cache(use_kv_cache_manager_v2=True, max_attention_window=(64,)))

EARLY_OFFERS = replace(
    GOOD,
    kv_connector_config=AggressiveConnectorConfig(
        connector_module="m",
        connector_scheduler_class="S",
        connector_worker_class="W",
        aggressive_prefix_budgeting=True,
    ),
)


def test_the_arguments_say_whether_offers_are_asked_for_early() -> None:
    newest = HostOptions(epoch="E4", layout="v2")
    assert settle(EARLY_OFFERS, newest).aggressive
    assert not settle(GOOD, newest).aggressive


def test_what_late_epochs_run_is_run() -> None:
    assert settle(replace(GOOD, tensor_parallel_size=2), HostOptions(), 2).epoch == "E2"
    assert settle(LATE, HostOptions(epoch="E3")).epoch == "E3"
    assert settle(V2, HostOptions(epoch="E4", layout="v2")).layout == "v2"
    assert settle(GOOD, HostOptions(num_drafts=2)).overlap
    early = HostOptions(epoch="E1", one_call_more=True)
    assert settle(GOOD, early).one_call_more
    in_turn = replace(GOOD, disable_overlap_scheduler=True)
    assert not settle(in_turn, early).one_call_more  # it comes with the overlap scheduler


@pytest.mark.parametrize(
    ("args", "options", "named"),
    [
        (V2, {"layout": "v2"}, "layout"),
        (
            replace(GOOD, **cache(enable_block_reuse=False)),
            {"layout": "v2", "epoch": "E3"},
            "enable_block_reuse",
        ),
        (GOOD, {"num_drafts": 1, "epoch": "E1"}, "num_drafts"),
        (GOOD, {"one_call_more": True}, "one_call_more"),
        (EARLY_OFFERS, {"epoch": "E3", "layout": "v2"}, "aggressive_prefix_budgeting"),
        (EARLY_OFFERS, {"epoch": "E4"}, "aggressive_prefix_budgeting"),
        (GOOD, {"num_drafts": 1, "epoch": "E3", "layout": "v2"}, "num_drafts"),
        (
            replace(GOOD, speculative_config=SimpleNamespace(speculative_model="draft")),
            {"num_drafts": 1},
            "speculative_config",
        ),
    ],
)
def test_what_an_epoch_refuses_is_refused(
    args: LlmArgs, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        settle(args, HostOptions(**options))


def test_as_many_ranks_as_the_arguments_say() -> None:
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        settle(GOOD, HostOptions(), 2)
