"""The configurations for TensorRT-LLM name what is there, with settings that do not forbid hits."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import Any

import pytest

from adapter.config import CONNECTOR_MODULE, ConnectorConfig
from adapter.conformance.host.llm_args import KvCacheConfig
from adapter.serverurl import check_url
from server.cli.presetcheck import PRESETS
from tests.repository import tree

FOLDER = tree.ROOT / "deploy" / "tensorrt_llm"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))


def load(name: str) -> dict[str, dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((FOLDER / name).read_text())
    assert set(found) == {"kv_cache_config", "kv_connector_config"}
    return dict(found)


@pytest.mark.parametrize("name", FILES)
def test_the_host_knows_every_key(name: str) -> None:
    """It rejects those that it does not know (host contract §2)."""
    found = load(name)
    assert set(found["kv_cache_config"]) <= {one.name for one in fields(KvCacheConfig)}
    assert set(found["kv_connector_config"]) <= {one.name for one in fields(ConnectorConfig)}


@pytest.mark.parametrize("name", FILES)
def test_what_it_says_of_the_cache_lets_requests_hit(name: str) -> None:
    cache = KvCacheConfig(**load(name)["kv_cache_config"])
    assert cache.enable_block_reuse
    assert not cache.enable_partial_reuse
    assert cache.host_cache_size == 0


def test_the_module_has_the_classes_named() -> None:
    connector = load("kvkeep.yaml")["kv_connector_config"]
    assert connector["connector_module"] == CONNECTOR_MODULE
    module = importlib.import_module(connector["connector_module"])
    assert hasattr(module, connector["connector_scheduler_class"])
    assert hasattr(module, connector["connector_worker_class"])


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_has_a_configuration(preset: str) -> None:
    connector = load(f"preset-{preset}.yaml")["kv_connector_config"]
    assert connector["connector"] == preset
    if "server_url" in connector:
        check_url(connector["server_url"], "server_url")


def test_the_readme_names_every_file() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert [name for name in FILES if f"({name})" not in readme] == []
    assert len(FILES) == 1 + len(PRESETS)
