"""What a model's files say: geometry, and digests of configuration and weights.

Purpose: other weights under the same name must be another model (B02), without reading gigabytes:
weights are digested by name, size, index and samples of their content. Must not know: the pool,
the namespace. Runs in: the main thread, at pool registration.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from protocol.keys import tagged

CONFIG_NAME: Final = "config.json"
_CONFIG_NAMES: Final = (CONFIG_NAME, "hf_quant_config.json", "quantize_config.json")
_WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
_INDEX_SUFFIX: Final = ".index.json"
_MAX_CONFIG_BYTES: Final = 64 << 20
_HEAD_BYTES: Final = 64 << 10
_SAMPLE_BYTES: Final = 4 << 10
_NUM_SAMPLES: Final = 16
_MAX_OVERRIDE_CHARS: Final = 256


@dataclass(frozen=True)
class ModelIdentity:
    """What was found of a model.

    Attributes:
        model_id: last part of the path, or the hub id, with the revision where one is known.
        config: parsed ``config.json``; empty when there is none.
        config_digest: digest of the configuration files; empty when there are none.
        weights_digest: digest of the weight files; empty when there are none.
    """

    model_id: str
    config: Mapping[str, Any]
    config_digest: bytes
    weights_digest: bytes


def find_model(model: str, revision: str | None, environ: Mapping[str, str]) -> ModelIdentity:
    """Identifies a model by its files.

    Args:
        model: directory, or hub id of a model in the local hub cache.
        revision: hub revision, if one was asked for.
        environ: names the hub cache.

    Returns:
        The identity. Engines that name the same files by different paths get different ids only
        if the last part of the path differs.
    """
    folder: Path | None = Path(model)
    if not Path(model).is_dir():
        folder = _hub_snapshot(model, revision, environ)
    model_id = os.path.basename(os.path.normpath(model)) if Path(model).is_dir() else model
    if revision:
        model_id = f"{model_id}@{revision}"
    if folder is None:
        return ModelIdentity(model_id, {}, b"", b"")
    return ModelIdentity(
        model_id, _read_config(folder), _config_digest(folder), _weights_digest(folder)
    )


def elements_per_token(config: Mapping[str, Any], kv_factor: int, num_ranks: int = 1) -> int:
    """Elements one token takes in one layer's K or V on one rank.

    Args:
        config: parsed ``config.json``; a nested ``text_config`` is looked into.
        kv_factor: of the pool; 1 means one latent head (MLA). Source: host contract §7.
        num_ranks: ranks that split the KV heads; with fewer heads than ranks each has one, a copy
            of a neighbour's. Source: host contract §12.14.

    Returns:
        The width, or 0 when the config does not tell.
    """
    config = _text_config(config)
    if kv_factor == 1:
        return _whole(config, "kv_lora_rank") + _whole(config, "qk_rope_head_dim")
    num_heads = _whole(config, "num_attention_heads")
    num_kv_heads = _whole(config, "num_key_value_heads") or num_heads
    head_dim = _whole(config, "head_dim")
    if not head_dim and num_heads:
        head_dim = _whole(config, "hidden_size") // num_heads
    return max(1, num_kv_heads // num_ranks) * head_dim if num_kv_heads else 0


def has_latent(config: Mapping[str, Any]) -> bool:
    """Whether the model keeps one latent per token instead of K and V (MLA).

    Args:
        config: parsed ``config.json``; a nested ``text_config`` is looked into.
    """
    return _whole(_text_config(config), "kv_lora_rank") > 0


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) and "num_attention_heads" in text else config


def stable_text(value: Any) -> str:
    """A setting as text that is equal in every process for equal settings.

    Args:
        value: scalar, mapping, sequence, enum, dataclass or pydantic model.

    Returns:
        At most 256 characters; longer texts become a digest.
    """
    text = json.dumps(_plain(value, 0), sort_keys=True, ensure_ascii=True)
    if len(text) > _MAX_OVERRIDE_CHARS:
        return f"sha256:{sha256(text.encode()).hexdigest()}"
    return text


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth < 8:
        if callable(getattr(value, "model_dump", None)):
            value = value.model_dump()
        if is_dataclass(value) and not isinstance(value, type):
            value = {item.name: getattr(value, item.name) for item in fields(value)}
        if isinstance(value, Mapping):
            return {str(key): _plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [_plain(item, depth + 1) for item in value]
        if isinstance(value, (set, frozenset)):
            return sorted(json.dumps(_plain(item, depth + 1), sort_keys=True) for item in value)
    name = getattr(value, "name", "")
    return [type(value).__qualname__, name if isinstance(name, str) else ""]


def _whole(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _hub_snapshot(model: str, revision: str | None, environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    hub = Path(environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    repository = hub / f"models--{model.replace('/', '--')}"
    try:
        commit = (repository / "refs" / (revision or "main")).read_text().strip()
    except (OSError, ValueError):
        commit = revision or ""
    snapshot = repository / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def _read_config(folder: Path) -> Mapping[str, Any]:
    try:
        with (folder / CONFIG_NAME).open("rb") as file:
            parsed = json.loads(file.read(_MAX_CONFIG_BYTES))
    except (OSError, ValueError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _config_digest(folder: Path) -> bytes:
    parts = []
    for name in _CONFIG_NAMES:
        path = folder / name
        if path.is_file():
            with path.open("rb") as file:
                content = file.read(_MAX_CONFIG_BYTES)
            parts.append(tagged(1, name.encode()) + tagged(2, content))
    return sha256(b"".join(parts)).digest() if parts else b""


def _weights_digest(folder: Path) -> bytes:
    digest, found = sha256(), False
    for path in sorted(_files(folder)):
        if path.name.endswith(_INDEX_SUFFIX):
            with path.open("rb") as file:
                part = file.read(_MAX_CONFIG_BYTES)
            digest.update(tagged(1, path.name.encode()) + tagged(2, sha256(part).digest()))
        elif path.name.endswith(_WEIGHT_SUFFIXES):
            found = True
            digest.update(tagged(1, path.name.encode()) + tagged(3, _sampled(path)))
    return digest.digest() if found else b""


def _files(folder: Path) -> Iterable[Path]:
    return [path for path in folder.iterdir() if path.is_file()]


def _sampled(path: Path) -> bytes:
    """Size, beginning and evenly spread samples; a retrained file differs nearly everywhere."""
    size = path.stat().st_size
    digest = sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_HEAD_BYTES))
        for index in range(1, _NUM_SAMPLES + 1):
            file.seek(max(0, size * index // _NUM_SAMPLES - _SAMPLE_BYTES))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
