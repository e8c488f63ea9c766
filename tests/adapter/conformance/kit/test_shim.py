"""Differences between our stand-ins and a host's classes are named, one by one."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter import trtllm_fallback as ours
from adapter.conformance.kit.shim import compare, compare_installed, resembled
from adapter.trtllm_api import CONNECTOR_MODULES, host_is_installed
from tests.adapter.conformance.kit.planted import EPOCHS, planted

pytestmark = pytest.mark.torch


def _host(name: str = CONNECTOR_MODULES[0]) -> Any:
    module: Any = ModuleType(name)
    module.KvCacheConnectorScheduler = ours.FallbackScheduler
    module.KvCacheConnectorWorker = ours.FallbackWorker
    module.RequestData = ours.FallbackRequestData
    module.SchedulerOutput = ours.FallbackSchedulerOutput
    return module


def test_an_equal_host_does_not_differ() -> None:
    assert list(compare(_host())) == []


def test_what_a_host_has_more_or_otherwise_is_named() -> None:
    class Scheduler(ours.FallbackScheduler):
        def update_state_after_alloc(self, request: Any, pages: list[int]) -> None: ...

        @abstractmethod
        def teleport(self, request: Any) -> None: ...

    @dataclasses.dataclass
    class Data:
        request_id: int
        colour: str

    host = _host()
    host.KvCacheConnectorScheduler, host.RequestData = Scheduler, Data
    found = "\n".join(compare(host))
    name = "KvCacheConnectorScheduler"
    assert f"{name}.update_state_after_alloc: takes (request, pages), not (request, block_" in found
    assert f"{name}.teleport: only there, not implemented by us" in found
    assert f"{name}.teleport: abstract there and not implemented by us" in found
    assert "RequestData.colour: a field only there" in found
    assert "RequestData.new_tokens: no such field in this version" in found


def test_a_missing_class_and_an_unknown_place_are_named() -> None:
    host = _host("somewhere.else")
    del host.SchedulerOutput
    found = list(compare(host))
    assert any("none of the known places" in line for line in found)
    assert "SchedulerOutput: not there" in found


def test_a_host_that_cannot_be_looked_at_costs_no_findings() -> None:
    load, args = planted("E3"), "tensorrt_llm.llmapi.llm_args"
    odd = ModuleType("odd")
    vars(odd)["CONNECTOR_REGISTRY"] = 7  # is no table

    def found(name: str) -> ModuleType:
        if name == args:
            raise RuntimeError("no driver")
        return odd if name.endswith(".registry") else load(name)

    told = compare_installed(found).differences
    assert "KvCacheConnectorConfig: not there" in told
    assert told[-1].startswith("not compared any further: TypeError")


def test_without_a_host_it_says_why() -> None:
    report = compare_installed()
    assert bool(report.module) is host_is_installed()
    assert report.module or report.absent_because


@pytest.mark.parametrize("epoch", EPOCHS)
def test_each_epochs_interface_is_found_recognised_and_compared(epoch: str) -> None:
    report = compare_installed(planted(epoch))
    assert (report.epoch, report.absent_because) == (epoch, "")
    assert report.module == CONNECTOR_MODULES[epoch == "E1"]
    told = "\n".join(report.differences)
    assert ("RequestData.block_hashes: no such field" in told) is (epoch == "E1")
    assert ("RequestData.new_block_ids_by_layer_group: no such" in told) is (epoch in ("E1", "E2"))
    assert ("supports_attention_dp: no such attribute" in told) is (epoch in ("E1", "E2"))
    assert ("Scheduler.cancel_load: only there, " in told) is (epoch == "E4")
    assert ("Worker.capacity_only: an attribute only there, False" in told) is (epoch == "E4")
    assert "abstract there" not in told
    assert "KvCacheConnectorConfig" not in told
    assert ("presets: kvbm, lmcache" in told) is (epoch != "E1")


def test_an_interface_of_no_epoch_is_told_by_the_nearest() -> None:
    module = planted("E2")(CONNECTOR_MODULES[0])
    module.KvCacheConnectorScheduler.request_reset = lambda self, request: None
    assert resembled(module) == "E2, but: has request_reset"


def test_a_class_attribute_of_another_value_is_named() -> None:
    class Worker(ours.FallbackWorker):
        supports_attention_dp = True

    host = _host()
    host.KvCacheConnectorWorker = Worker
    assert list(compare(host)) == ["KvCacheConnectorWorker.supports_attention_dp: True, not False"]
