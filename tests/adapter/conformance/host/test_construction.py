import os
from dataclasses import replace
from typing import Any

import pytest

from adapter.conformance.host.construction import check_groups, construct, playing
from adapter.conformance.host.errors import HostError
from adapter.conformance.host.llm_args import (
    AggressiveConnectorConfig,
    KvCacheConnectorConfig,
    LlmArgs,
)
from adapter.trtllm_api import CONFORMANCE_EPOCH, epoch_features
from tests.adapter.conformance.host.connectors import RecordingScheduler, connector_config


class NotOptedIn:
    def __init__(self, llm_args: Any) -> None: ...


def arguments(scheduler: str, worker: str) -> LlmArgs:
    config = KvCacheConnectorConfig(
        connector_module=__name__,
        connector_scheduler_class=scheduler,
        connector_worker_class=worker,
    )
    return LlmArgs("model", kv_connector_config=config)


def test_a_follower_has_a_worker_only() -> None:
    args = arguments("NotOptedIn", "NotOptedIn")
    scheduler, worker = construct(args, has_scheduler=False, adp=False)
    assert scheduler is None
    assert isinstance(worker, NotOptedIn)
    scheduler, _ = construct(args, has_scheduler=True, adp=False)
    assert isinstance(scheduler, NotOptedIn)


def test_attention_dp_needs_both_classes_to_have_opted_in() -> None:
    with pytest.raises(ValueError, match="NotOptedIn does not support attention DP"):
        construct(arguments("NotOptedIn", "NotOptedIn"), has_scheduler=True, adp=True)
    opted = LlmArgs("model", kv_connector_config=connector_config("Recording", "plain://opted"))
    scheduler, _ = construct(opted, has_scheduler=True, adp=True)
    assert isinstance(scheduler, RecordingScheduler)


def test_early_offers_need_a_way_back() -> None:
    names = connector_config("Recording", "plain://early")
    config = AggressiveConnectorConfig(**vars(names), aggressive_prefix_budgeting=True)
    args = LlmArgs("model", kv_connector_config=config)
    assert construct(args, has_scheduler=True, adp=False)
    lacking = replace(
        arguments("NotOptedIn", "NotOptedIn"),
        kv_connector_config=replace(
            config,
            connector_module=__name__,
            connector_scheduler_class="NotOptedIn",
            connector_worker_class="NotOptedIn",
        ),
    )
    with pytest.raises(ValueError, match="NotOptedIn does not override cancel_load"):
        construct(lacking, has_scheduler=True, adp=False)


def test_several_groups_need_the_methods_for_groups() -> None:
    class Grouped(RecordingScheduler):
        def update_state_after_alloc_by_layer_group(self, request: Any, block_ids: Any) -> None: ...

        def request_finished_by_layer_group(self, request: Any, block_ids: Any) -> bool:
            return False

    args = LlmArgs("model", kv_connector_config=connector_config("Recording", "plain://grouped"))
    check_groups(RecordingScheduler(args), 1)
    check_groups(Grouped(args), 2)
    with pytest.raises(HostError, match="update_state_after_alloc_by_layer_group"):
        check_groups(RecordingScheduler(args), 2)
    with pytest.raises(HostError, match="2 layer groups"):
        check_groups(object(), 2)


def test_the_epoch_is_played_for_as_long_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFORMANCE_EPOCH, raising=False)
    with playing("E4"):
        assert epoch_features().cancel_load
        with playing("E1"):
            assert not epoch_features().block_hashes
        assert epoch_features().cancel_load
    assert CONFORMANCE_EPOCH not in os.environ
