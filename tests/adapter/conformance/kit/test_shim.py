"""Differences between our stand-ins and a host's classes are named, one by one."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter import trtllm_fallback as ours
from adapter.conformance.kit.shim import compare, compare_installed
from adapter.trtllm_api import CONNECTOR_MODULES, host_is_installed

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


def test_without_a_host_it_says_why() -> None:
    report = compare_installed()
    assert bool(report.module) is host_is_installed()
    assert report.module or report.absent_because
