"""What lies around the interface: fields of the config, presets, requests, layouts."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from adapter.conformance.kit.shim_around import around
from tests.adapter.conformance.kit.planted import CONNECTORS, EPOCHS, planted

ARGS = "tensorrt_llm.llmapi.llm_args"
MANAGER = "tensorrt_llm.bindings.internal.batch_manager"


def without(epoch: str, gone: str, **instead: Any) -> Any:
    load = planted(epoch)

    def found(name: str) -> Any:
        if name != gone:
            return load(name)
        if not instead:
            raise ImportError(name)
        return SimpleNamespace(**instead)

    return found


@pytest.mark.parametrize("epoch", EPOCHS)
def test_what_each_epoch_has_is_no_difference(epoch: str) -> None:
    told = [line for line in around(planted(epoch), epoch) if not line.startswith("presets: ")]
    assert told == []


def test_fields_of_the_config_that_are_missing_or_new_are_named() -> None:
    config = type("C", (), {"model_fields": {"connector": 0, "connector_module": 0, "timeout": 0}})
    told = "\n".join(around(without("E2", ARGS, KvCacheConnectorConfig=config), "E2"))
    assert "connector_worker_class: no such field in this version; a connector cannot be" in told
    assert "server_url: no such field in this version; in E2 it was expected" in told
    assert "timeout: a field only there" in told


@pytest.mark.parametrize(
    ("gone", "line"),
    [
        (ARGS, "KvCacheConnectorConfig: not there"),
        (f"{CONNECTORS}.registry", "presets: no CONNECTOR_REGISTRY"),
        (MANAGER, "LlmRequest: not there"),
        (f"{CONNECTORS}.kv_cache_layout", "KvCacheLayout: not there"),
    ],
)
def test_what_is_not_there_is_named(gone: str, line: str) -> None:
    assert any(told.startswith(line) for told in around(without("E3", gone), "E3"))


def test_requests_and_layouts_without_what_is_read_of_them_are_named() -> None:
    class Request:
        request_id = get_tokens = lora_task_id = 0

    told = "\n".join(around(without("E3", MANAGER, LlmRequest=Request), "E3"))
    assert "LlmRequest.multimodal_hashes: not there" in told
    assert "neither is there; tenants cannot be told apart" in told
    place = f"{CONNECTORS}.kv_cache_layout"
    told = "\n".join(around(without("E3", place, KvCacheLayout=ModuleType), "E3"))
    assert "KvCacheLayout.groups: not there" in told


def test_presets_are_listed_and_a_rank_without_a_number_is_named() -> None:
    told = list(around(without("E3", "tensorrt_llm", version=1), "E3"))
    assert any(line.startswith("presets: kvbm, lmcache;") for line in told)
    assert any("mpi_rank" in line for line in told)
