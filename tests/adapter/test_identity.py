"""The namespace follows what determines KV bytes, and engines that cannot be cached say why."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adapter.config import Settings
from adapter.identity import (
    PoolShape,
    UncachedError,
    chunk_blocks_of,
    derive,
    refuse_unsupported,
)
from adapter.serverurl import ServerUrl
from protocol.errors import ConfigError, ErrorCode
from protocol.namespace import fingerprint
from tests.adapter.hostlike import Args, CacheConfig

SETTINGS = Settings(ServerUrl("tcp://127.0.0.1:1", "test"))
CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
POOL = PoolShape(10, 2, 2, 4 * 16, 2, "bfloat16", "cpu", 0)


@dataclass
class FakeTensor:
    """A tensor by duck typing, over numpy."""

    array: Any
    device: Any = "cpu"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> str:
        return f"torch.{self.array.dtype}"

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def element_size(self) -> int:
        return int(self.array.itemsize)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"w" * 1000)
    return tmp_path


def args(model: Path, **changes: Any) -> Args:
    return replace(Args(model=str(model)), **changes)


def test_pool_shape_reads_a_tensor() -> None:
    array = np.zeros((10, 2, 2, 64), dtype=np.float32)
    shape = PoolShape.of(FakeTensor(array, SimpleNamespace(type="cuda")))
    assert shape.page_bytes == 2 * 2 * 64 * 4
    assert shape.num_bytes == array.nbytes
    assert (shape.dtype, shape.device, shape.address) == ("float32", "cuda", array.ctypes.data)


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4), np.int8), np.zeros((4, 2, 2, 8), np.int8)[:, :, :, ::2]]
)
def test_pool_shape_refuses_other_layouts(array: Any) -> None:
    with pytest.raises(UncachedError):
        PoolShape.of(FakeTensor(array))


def test_block_size_comes_from_the_pool(model: Path) -> None:
    wrong = args(model, kv_cache_config=CacheConfig(tokens_per_block=32))
    namespace, geometry = derive(wrong, POOL, SETTINGS, {})
    assert geometry.tokens_per_block == 4
    assert namespace.tokens_per_block == 4
    assert namespace.groups[0].page_bytes == POOL.page_bytes == geometry.page_bytes
    assert geometry.chunk_tokens == 4


def test_block_size_as_configured_when_the_config_is_silent(model: Path) -> None:
    (model / "config.json").write_text("{}")
    assert derive(args(model), POOL, SETTINGS, {})[1].tokens_per_block == 4
    odd = args(model, kv_cache_config=CacheConfig(tokens_per_block=5))
    with pytest.raises(UncachedError, match="64 elements"):
        derive(odd, POOL, SETTINGS, {})


def changed(model: Path, what: str) -> bytes:
    settings, pool, engine = SETTINGS, POOL, args(model)
    if what == "epoch":
        settings = replace(settings, weights_epoch="2")
    elif what == "dtype":
        pool = replace(pool, dtype="float16")
    elif what == "backend":
        engine = args(model, attn_backend="OTHER")
    elif what == "quantisation":
        engine = args(model, kv_cache_config=CacheConfig(dtype="fp8"))
    elif what == "weights":
        (model / "model.safetensors").write_bytes(b"v" * 1000)
    elif what == "override":
        engine = args(model, speculative_config=SimpleNamespace(name="mtp"))
    elif what == "layers":
        pool = replace(pool, num_layers=3)
    elif what == "chunk":
        settings = replace(settings, chunk_tokens=8)
    return fingerprint(derive(engine, pool, settings, {})[0])


def test_each_of_these_is_another_namespace(model: Path) -> None:  # B02
    whats = ("", "epoch", "dtype", "backend", "quantisation", "override", "layers", "chunk")
    prints = [changed(model, what) for what in (*whats, "weights")]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_config": CacheConfig(enable_block_reuse=False)}, "enable_block_reuse"),
        ({"kv_cache_config": CacheConfig(host_cache_size=1 << 30)}, "host_cache_size"),
        ({"kv_cache_config": CacheConfig(disk_cache_size=1)}, "disk_cache_size"),
        ({"kv_cache_config": CacheConfig(dtype="nvfp4")}, "NVFP4"),
        ({"quant_config": SimpleNamespace(kv_cache_quant_algo="NVFP4")}, "NVFP4"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"enable_attention_dp": True}, "attention data"),
        ({"kv_cache_config": CacheConfig(max_attention_window=[128])}, "max_attention_window"),
    ],
)
def test_engines_that_cannot_be_cached(model: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UncachedError, match=words):
        refuse_unsupported(args(model, **changes))


def test_a_window_that_never_drops_anything_is_fine(model: Path) -> None:
    refuse_unsupported(
        args(model, max_seq_len=64, kv_cache_config=CacheConfig(max_attention_window=[64]))
    )


def test_pools_that_are_not_shown_completely(model: Path) -> None:
    with pytest.raises(UncachedError, match="1 of the model's 2 layers"):
        derive(args(model), replace(POOL, num_layers=1), SETTINGS, {})
    packed = replace(POOL, dtype="int8", elements=2 * 16)
    with pytest.raises(UncachedError, match="pack"):
        derive(args(model), packed, SETTINGS, {})
    with pytest.raises(UncachedError, match="whole number"):
        derive(args(model), replace(POOL, elements=17), SETTINGS, {})


def test_weights_must_be_told_apart(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(UncachedError, match="TRTLLM_KVKEEP_WEIGHTS_EPOCH"):
        derive(args(model), POOL, SETTINGS, {})
    derive(args(model), POOL, replace(SETTINGS, weights_epoch="1"), {})


def test_chunk_sizes() -> None:
    assert chunk_blocks_of(0, 32) == 1
    assert chunk_blocks_of(256, 32) == 8
    for bad in (48, 31, 32 * 257):
        with pytest.raises(ConfigError, match="valid are 32, 64, 96") as caught:
            chunk_blocks_of(bad, 32)
        assert caught.value.code == ErrorCode.CHUNK_SIZE_INVALID
