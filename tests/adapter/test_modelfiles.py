"""Other weights, other settings or another revision are another model (B02)."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapter.modelfiles import elements_per_token, find_model, has_latent, stable_text


def write(folder: Path, weights: bytes = b"w" * 300_000, config: Any = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"num_hidden_layers": 2}))
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "model.safetensors.index.json").write_text("{}")
    return folder


def test_equal_files_are_equal_models_wherever_they_lie(tmp_path: Path) -> None:
    one = find_model(str(write(tmp_path / "a" / "m")), None, {})
    two = find_model(str(write(tmp_path / "b" / "m")) + "/", None, {})
    assert one == two
    assert one.weights_digest
    assert one.config_digest


@pytest.mark.parametrize("at", [0, 299_999, 18_750 - 1, 150_000 - 1])
def test_other_weights_of_equal_size(tmp_path: Path, at: int) -> None:
    changed = bytearray(b"w" * 300_000)
    changed[at] = 0
    one = find_model(str(write(tmp_path / "a" / "m")), None, {})
    two = find_model(str(write(tmp_path / "b" / "m", bytes(changed))), None, {})
    assert one.weights_digest != two.weights_digest


def test_other_config_or_index(tmp_path: Path) -> None:
    one = find_model(str(write(tmp_path / "m")), None, {})
    other = find_model(str(write(tmp_path / "m", config={"x": 1})), None, {})
    assert one.config_digest != other.config_digest
    (tmp_path / "m" / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert find_model(str(tmp_path / "m"), None, {}).weights_digest != other.weights_digest
    (tmp_path / "m" / "hf_quant_config.json").write_text("{}")
    assert find_model(str(tmp_path / "m"), None, {}).config_digest != other.config_digest


def test_a_folder_without_weights_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    found = find_model(str(tmp_path / "m"), None, {})
    assert found.weights_digest == b""
    assert found.config == {}


def test_hub_models_are_found_by_commit(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--org--name"
    write(repository / "snapshots" / "c0ffee")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    environ = {"HF_HOME": str(tmp_path)}
    found = find_model("org/name", None, environ)
    assert found.model_id == "org/name"
    assert found.weights_digest
    assert find_model("org/name", "c0ffee", environ).model_id == "org/name@c0ffee"
    assert find_model("org/name", "gone", environ).weights_digest == b""
    assert find_model("org/name", None, {"HF_HUB_CACHE": str(tmp_path)}).weights_digest == b""


@pytest.mark.parametrize(
    ("config", "kv_factor", "width"),
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}, 2, 128),
        ({"num_attention_heads": 8, "hidden_size": 512}, 2, 512),
        ({"text_config": {"num_attention_heads": 4, "head_dim": 16}}, 2, 64),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 1, 576),
        ({}, 2, 0),
        ({"num_attention_heads": "8"}, 2, 0),
    ],
)
def test_elements_per_token(config: dict[str, Any], kv_factor: int, width: int) -> None:
    assert elements_per_token(config, kv_factor) == width


def test_ranks_split_the_heads_down_to_one_each() -> None:  # host contract §12.14
    config = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    assert [elements_per_token(config, 2, ranks) for ranks in (1, 2, 4)] == [128, 64, 64]
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert elements_per_token(latent, 1, 4) == 576
    assert elements_per_token({}, 2, 4) == 0


def test_models_with_a_latent() -> None:
    assert has_latent({"kv_lora_rank": 512})
    assert has_latent({"text_config": {"num_attention_heads": 4, "kv_lora_rank": 8}})
    assert not has_latent({"num_attention_heads": 8})


class Algorithm(enum.Enum):
    FP8 = "fp8"


@dataclass
class Quant:
    algorithm: Algorithm | None
    groups: tuple[int, ...] = (1, 2)


class Pydantic:
    def model_dump(self) -> dict[str, Any]:
        return {"b": 1, "a": Quant(Algorithm.FP8)}


def test_stable_text() -> None:
    assert stable_text(Quant(Algorithm.FP8)) == stable_text(Quant(Algorithm.FP8))
    assert stable_text(Quant(Algorithm.FP8)) != stable_text(Quant(None))
    assert "0x" not in stable_text(object())
    assert stable_text(Pydantic()) == stable_text(Pydantic())
    assert stable_text({"b": 1, "a": {3, 1}}) == stable_text({"a": {1, 3}, "b": 1})
    assert len(stable_text(["x" * 100] * 100)) < 100
    loop: list[Any] = []
    loop.append(loop)
    assert stable_text(loop)
