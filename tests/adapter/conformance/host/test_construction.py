import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.construction import (
    check_groups,
    check_prefix_loads,
    construct,
    playing,
)
from adapter.conformance.host.errors import HostError
from adapter.conformance.host.hooks import HookRecorder
from adapter.conformance.host.llm_args import (
    AggressiveConnectorConfig,
    KvCacheConnectorConfig,
    LlmArgs,
)
from adapter.conformance.host.options import HostOptions
from adapter.trtllm_api import CONFORMANCE_EPOCH, epoch_features
from tests.adapter.conformance.host.connectors import (
    CALLS,
    RecordingScheduler,
    RecordingWorker,
    connector_config,
)


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


class Reserving(RecordingScheduler):
    def reserve_prefix(self, request: Any, computed: int, number: int) -> tuple[int, bool]:
        return 0, False

    def release_prefix_reservation(self, *arguments: Any) -> None: ...


class ReservingWorker(RecordingWorker):
    def get_finished_prefix_loads(self) -> list[int]:
        return []


def test_reserved_prefixes_need_three_methods_or_none() -> None:
    args = LlmArgs("model", kv_connector_config=connector_config("Recording", "plain://trio"))
    all_of_them = Reserving(args), ReservingWorker(args)
    check_prefix_loads(*all_of_them)
    check_prefix_loads(RecordingScheduler(args), RecordingWorker(args))
    check_prefix_loads(None, ReservingWorker(args))
    with pytest.raises(ValueError, match="lacks get_finished_prefix_loads"):
        check_prefix_loads(Reserving(args), RecordingWorker(args))
    with pytest.raises(ValueError, match="lacks reserve_prefix, release_prefix_reservation"):
        check_prefix_loads(RecordingScheduler(args), ReservingWorker(args))


@pytest.mark.parametrize("epoch", ["E3", "E4"])
def test_only_the_newest_epoch_asks_for_them(epoch: Any) -> None:
    config = KvCacheConnectorConfig(
        connector_module=__name__,
        connector_scheduler_class="Reserving",
        connector_worker_class="RecordingWorker",
        server_url="plain://half",
    )
    CALLS["plain://half"] = []
    args, options = LlmArgs("model", kv_connector_config=config), HostOptions(epoch=epoch)
    with pytest.raises(ValueError, match="lacks") if epoch == "E4" else nullcontext():
        ConnectorPort.construct(args, HookRecorder(), options)


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
