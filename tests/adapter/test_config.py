"""Settings are read once, and each wrong one is refused with its name and valid range."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapter import config, trtllm_api
from adapter.config import make_kv_connector_config, read_lora_digests, read_settings
from protocol.errors import ConfigError, ErrorCode
from tests.adapter.hostlike import Args

HEX = "ab" * 32


def test_defaults(tmp_path: Path) -> None:
    settings = read_settings(Args(), {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert settings.chunk_tokens == 0
    assert settings.held_percent == 5
    assert settings.query_budget_s == pytest.approx(0.02)
    assert settings.lora_digests == {}


@pytest.mark.parametrize(
    ("name", "bad", "unit"),
    [
        (config.ENV_CHUNK_TOKENS, "0", "tokens"),
        (config.ENV_CHUNK_TOKENS, "many", "tokens"),
        (config.ENV_HELD_PERCENT, "101", "percent"),
        (config.ENV_BUDGET_MS, "0", "milliseconds"),
        (config.ENV_BUDGET_MS, "", "milliseconds"),
        (config.ENV_BUDGET_MS, "60001", "milliseconds"),
    ],
)
def test_numbers_out_of_range(name: str, bad: str, unit: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        read_settings(Args(), {name: bad, "TRTLLM_KVKEEP_SERVER_URL": "tcp://localhost:1"})
    assert unit in caught.value.message
    assert ".." in caught.value.message


def test_the_budget_may_be_as_long_as_the_server_waits() -> None:
    environ = {"TRTLLM_KVKEEP_SERVER_URL": "tcp://localhost:1", config.ENV_BUDGET_MS: "60000"}
    assert read_settings(Args(), environ).query_budget_s == 60.0


def test_variables_that_are_no_settings_are_told_apart() -> None:
    known = [value for name, value in vars(config).items() if name.startswith("ENV_")]
    assert len(known) == 8
    environ = dict.fromkeys([*known, "TRTLLM_KVKEEP_INPROC_L1SIZE", "KVKEEP_L1_SIZE", "HOME"], "")
    assert config.unknown_variables(environ) == []
    environ |= {"TRTLLM_KVKEEP_BUDGET": "3", "TRTLLM_KVKEEP_": ""}
    assert config.unknown_variables(environ) == ["TRTLLM_KVKEEP_", "TRTLLM_KVKEEP_BUDGET"]


def test_load_modes_are_named() -> None:
    environ = {"TRTLLM_KVKEEP_SERVER_URL": "tcp://localhost:1"}
    assert read_settings(Args(), environ).load_mode == "auto"
    environ[config.ENV_LOAD_MODE] = " Layerwise"
    assert read_settings(Args(), environ).load_mode == "layerwise"
    environ[config.ENV_LOAD_MODE] = "fast"
    with pytest.raises(ConfigError, match="auto, sync, async, layerwise") as caught:
        read_settings(Args(), environ)
    assert config.ENV_LOAD_MODE in caught.value.message


def test_embedded_mode_is_a_valid_url() -> None:
    assert make_kv_connector_config("inproc://").server_url == "inproc://"


def test_weights_epoch_has_a_bound() -> None:
    environ = {config.ENV_WEIGHTS_EPOCH: "x" * 513, "TRTLLM_KVKEEP_SERVER_URL": "tcp://localhost:1"}
    with pytest.raises(ConfigError, match=config.ENV_WEIGHTS_EPOCH):
        read_settings(Args(), environ)


def test_lora_digests_inline_and_from_a_file(tmp_path: Path) -> None:
    text = json.dumps({"7": HEX})
    file = tmp_path / "lora.json"
    file.write_text(text)
    expected = {7: bytes.fromhex(HEX)}
    assert read_lora_digests(text) == expected
    assert read_lora_digests(str(file)) == expected
    assert read_lora_digests(None) == {}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"a": "00"}',
        '{"1": "xyz"}',
        '{"1": 5}',
        '{"1": "abcd"}',
        "/no/such/file",
        "",
        '{"1":' * 100_000,
        f'{{"1": "{HEX}", "01": "{HEX}"}}',
    ],
    ids=range(9),
)
def test_bad_lora_digests(text: str) -> None:
    with pytest.raises(ConfigError, match=config.ENV_LORA_DIGESTS) as caught:
        read_lora_digests(text)
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_connector_config_names_classes_that_exist() -> None:
    made = make_kv_connector_config("tcp://localhost:5555")
    assert made.server_url == "tcp://localhost:5555"
    assert made.connector_module == config.CONNECTOR_MODULE


def test_connector_config_refuses_an_odd_url() -> None:
    with pytest.raises(ConfigError, match="scheme"):
        make_kv_connector_config("localhost:5555")


class WithUrl:
    model_fields: tuple[str, ...] = ("connector_module", "server_url")

    def __init__(self, **names: str) -> None:
        self.names = names


class WithoutUrl(WithUrl):
    model_fields = ("connector_module",)


def test_connector_config_of_a_real_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_api, "connector_config_class", lambda: WithUrl)
    made = make_kv_connector_config("tcp://localhost:1")
    assert made.names["server_url"] == "tcp://localhost:1"
    assert made.names["connector_scheduler_class"] == config.SCHEDULER_CLASS
    monkeypatch.setattr(trtllm_api, "connector_config_class", lambda: WithoutUrl)
    assert "server_url" not in make_kv_connector_config().names
    with pytest.raises(ConfigError, match="TRTLLM_KVKEEP_SERVER_URL"):
        make_kv_connector_config("tcp://localhost:1")


def test_staging_is_one_of_its_choices() -> None:
    environ = {"TRTLLM_KVKEEP_SERVER_URL": "ipc:///run/kvkeep.sock"}
    assert read_settings(Args(), environ).staging == "auto"
    for choice in ("auto", "ipc", "ring"):
        environ[config.ENV_STAGING] = choice.upper()
        assert read_settings(Args(), environ).staging == choice
    environ[config.ENV_STAGING] = "pinned"
    with pytest.raises(ConfigError, match=config.ENV_STAGING):
        read_settings(Args(), environ)
