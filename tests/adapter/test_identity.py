"""The namespace follows what determines KV bytes, the same on all ranks of one engine."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapter.config import Settings
from adapter.identity import chunk_blocks_of, derive, rank_of
from adapter.poolshape import CacheShape, GroupShape, PoolShape
from adapter.refusals import UncachedError
from adapter.serverurl import ServerUrl
from protocol import limits
from protocol.errors import ConfigError, ErrorCode
from protocol.namespace import fingerprint
from tests.adapter.hostlike import Args, CacheConfig

SETTINGS = Settings(ServerUrl("tcp://127.0.0.1:1", "test"))
CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
POOL = PoolShape(10, 2, 2, 4 * 16, 2, "bfloat16", "cpu", 0)
SHAPE = POOL.as_cache()
FULL = GroupShape(layers=(0,), num_pages=10, page_bytes=256)
WINDOW = GroupShape(layers=(1,), num_pages=6, page_bytes=128, window_tokens=8)
LAYOUT = CacheShape((FULL, WINDOW), "bfloat16", 2, "v2 test", tokens_per_block=16)


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


def pool(**changes: Any) -> CacheShape:
    return replace(POOL, **changes).as_cache()


def test_block_size_comes_from_the_pool(model: Path) -> None:
    wrong = args(model, kv_cache_config=CacheConfig(tokens_per_block=32))
    namespace, geometry = derive(wrong, SHAPE, SETTINGS, {})
    assert geometry.tokens_per_block == 4
    assert namespace.tokens_per_block == 4
    assert namespace.groups[0].page_bytes == POOL.page_bytes == geometry.groups[0].page_bytes
    assert geometry.groups[0].num_pages == 10
    assert geometry.chunk_tokens == 4


@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_usual_block_sizes_whatever_is_configured(model: Path, size: int) -> None:
    wrong = args(model, kv_cache_config=CacheConfig(tokens_per_block=32))
    shape = pool(elements=size * 16)
    assert derive(wrong, shape, SETTINGS, {})[1].tokens_per_block == size


def test_block_size_as_configured_when_the_config_is_silent(model: Path) -> None:
    (model / "config.json").write_text("{}")
    assert derive(args(model), SHAPE, SETTINGS, {})[1].tokens_per_block == 4
    odd = args(model, kv_cache_config=CacheConfig(tokens_per_block=5))
    with pytest.raises(UncachedError, match="64 elements"):
        derive(odd, SHAPE, SETTINGS, {})


def test_a_layout_tells_its_block_size_and_its_groups(model: Path) -> None:
    wrong = args(model, kv_cache_config=CacheConfig(tokens_per_block=32))
    namespace, geometry = derive(wrong, LAYOUT, SETTINGS, {})
    assert geometry.tokens_per_block == 16
    assert [(g.num_pages, g.page_bytes, g.window_tokens) for g in geometry.groups] == [
        (10, 256, 0),
        (6, 128, 8),
    ]
    assert [group.layers for group in namespace.groups] == [(0,), (1,)]
    assert geometry.shards == (0, 1)
    shared = replace(LAYOUT, groups=(FULL, replace(WINDOW, num_pages=10)), pools=(0, 0))
    assert derive(wrong, shared, SETTINGS, {})[1].pools == (0, 0)
    large = replace(LAYOUT, tokens_per_block=limits.MAX_TOKENS_PER_BLOCK + 1)
    with pytest.raises(UncachedError, match="too large"):
        derive(wrong, large, SETTINGS, {})


def test_ranks_share_one_namespace_and_hold_shards_of_their_own(model: Path) -> None:
    engine = args(model, tensor_parallel_size=2)
    shape = pool(elements=4 * 8)  # one of the two KV heads on each rank
    (first, leader), (second, other) = (derive(engine, shape, SETTINGS, {}, at) for at in (0, 1))
    assert first == second
    assert first.num_ranks == 2
    assert (leader.rank, leader.shards, other.rank, other.shards) == (0, (0,), 1, (1,))
    assert leader.tokens_per_block == 4
    assert fingerprint(first) != fingerprint(derive(args(model), SHAPE, SETTINGS, {})[0])


def test_fewer_heads_than_ranks_leave_one_on_each(model: Path) -> None:  # host contract §12.14
    engine = args(model, tensor_parallel_size=4)
    namespace, geometry = derive(engine, pool(elements=4 * 8), SETTINGS, {}, 3)
    assert (geometry.tokens_per_block, geometry.shards) == (4, (3,))
    assert not namespace.groups[0].replicated


def test_a_latent_is_stored_once_for_all_ranks(model: Path) -> None:
    config = CONFIG | {"kv_lora_rank": 12, "qk_rope_head_dim": 4}
    (model / "config.json").write_text(json.dumps(config))
    engine = args(model, tensor_parallel_size=2)
    namespace, geometry = derive(engine, pool(kv_factor=1), SETTINGS, {}, 1)
    assert namespace.groups[0].replicated
    assert namespace.num_shards == 1
    assert geometry.shards == (0,)
    alone = derive(args(model), pool(kv_factor=1), SETTINGS, {})[0]
    assert not alone.groups[0].replicated
    # A V2 layout without values is a latent only where the model says so too.
    keys_only = replace(LAYOUT, kv_factor=1)
    assert derive(engine, keys_only, SETTINGS, {}, 1)[0].groups[0].replicated
    (model / "config.json").write_text(json.dumps(CONFIG))
    assert not derive(engine, keys_only, SETTINGS, {}, 1)[0].groups[0].replicated


def test_one_factor_is_a_latent_only_by_the_models_word(model: Path) -> None:
    # Were it none, one rank's bytes would be served to all.
    engine = args(model, tensor_parallel_size=2)
    for config in (CONFIG, {}):
        (model / "config.json").write_text(json.dumps(config))
        namespace, geometry = derive(engine, pool(kv_factor=1), SETTINGS, {}, 1)
        assert not namespace.groups[0].replicated
        assert geometry.shards == (1,)


def test_keys_and_values_are_split_whatever_the_model_is_called(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"kv_lora_rank": 12}))
    engine = args(model, tensor_parallel_size=2)
    namespace, _ = derive(engine, replace(LAYOUT, kv_factor=2), SETTINGS, {})
    assert not any(group.replicated for group in namespace.groups)


def test_a_group_is_replicated_by_the_layouts_word(model: Path) -> None:
    groups = (FULL, replace(WINDOW, is_replicated=True))
    shape = replace(LAYOUT, groups=groups)
    namespace, geometry = derive(args(model, tensor_parallel_size=2), shape, SETTINGS, {}, 1)
    assert [group.replicated for group in namespace.groups] == [False, True]
    assert geometry.shards == (1, 2)
    alone, _ = derive(args(model), shape, SETTINGS, {})
    assert not any(group.replicated for group in alone.groups)


def test_each_rank_of_attention_dp_is_an_engine_of_its_own(model: Path) -> None:
    engine = args(model, tensor_parallel_size=2, enable_attention_dp=True)
    (first, one), (second, two) = (derive(engine, SHAPE, SETTINGS, {}, at) for at in (0, 1))
    assert first == second
    assert (first.num_ranks, one.rank, two.rank, two.shards) == (1, 0, 0, (0,))
    assert rank_of(engine, 1) == 0
    whole, _ = derive(args(model), SHAPE, SETTINGS, {})
    assert fingerprint(first) != fingerprint(whole), "its weights were split in another way"


def test_a_rank_beyond_the_tensor_parallel_size(model: Path) -> None:
    with pytest.raises(UncachedError, match="rank 2 of 2"):
        derive(args(model, tensor_parallel_size=2), SHAPE, SETTINGS, {}, 2)
    with pytest.raises(UncachedError, match="rank 1 of 1"):
        derive(args(model), SHAPE, SETTINGS, {}, 1)


def test_more_ranks_than_may_read_a_chunk(model: Path) -> None:
    many = args(model, tensor_parallel_size=limits.MAX_READERS + 1)
    with pytest.raises(UncachedError, match="of 257 attention ranks"):
        derive(many, LAYOUT, SETTINGS, {})


def test_more_shards_than_a_message_names(model: Path) -> None:
    many = tuple(replace(FULL, layers=(layer,)) for layer in range(64))
    engine = args(model, tensor_parallel_size=32)
    with pytest.raises(UncachedError, match="64 layer groups on 32 ranks"):
        derive(engine, replace(LAYOUT, groups=many), SETTINGS, {})


def changed(model: Path, what: str) -> bytes:
    settings, shape, engine = SETTINGS, SHAPE, args(model)
    if what == "epoch":
        settings = replace(settings, weights_epoch="2")
    elif what == "dtype":
        shape = pool(dtype="float16")
    elif what == "backend":
        engine = args(model, attn_backend="OTHER")
    elif what == "quantisation":
        engine = args(model, kv_cache_config=CacheConfig(dtype="fp8"))
    elif what == "weights":
        (model / "model.safetensors").write_bytes(b"v" * 1000)
    elif what == "config":
        (model / "config.json").write_text(json.dumps({**CONFIG, "rope_theta": 5.0}))
    elif what == "override":
        engine = args(model, speculative_config=SimpleNamespace(name="mtp"))
    elif what == "layers":
        shape = pool(num_layers=3)
    elif what == "chunk":
        settings = replace(settings, chunk_tokens=8)
    elif what == "layout":
        shape = replace(SHAPE, layout="v2 other", tokens_per_block=4)
    return fingerprint(derive(engine, shape, settings, {})[0])


def test_each_of_these_is_another_namespace(model: Path) -> None:  # B02
    whats = ("", "epoch", "dtype", "backend", "quantisation", "override", "layers", "chunk")
    prints = [changed(model, what) for what in (*whats, "layout", "weights", "config")]
    assert len(set(prints)) == len(prints)


def test_another_version_of_the_host_is_another_namespace(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = changed(model, "")
    monkeypatch.setattr("adapter.trtllm_api.host_version", lambda: "another one")
    assert changed(model, "") != before


def test_pools_that_are_not_shown_completely(model: Path) -> None:
    with pytest.raises(UncachedError, match="1 of the model's 2 layers"):
        derive(args(model), pool(num_layers=1), SETTINGS, {})
    with pytest.raises(UncachedError, match="1 of the model's 2 layers"):
        derive(args(model), replace(LAYOUT, groups=(FULL,)), SETTINGS, {})
    with pytest.raises(UncachedError, match="pack"):
        derive(args(model), pool(dtype="int8", elements=2 * 16), SETTINGS, {})
    with pytest.raises(UncachedError, match="whole number"):
        derive(args(model), pool(elements=17), SETTINGS, {})
    for dtype in ("uint8", "uint4", "float4_e2m1fn_x2"):
        with pytest.raises(UncachedError, match="pack"):
            derive(args(model), pool(dtype=dtype, elements=2 * 16), SETTINGS, {})
    (model / "config.json").write_text("{}")  # nothing tells how many values a byte holds
    with pytest.raises(UncachedError, match="pack"):
        derive(args(model), pool(dtype="int8", elements=2 * 16), SETTINGS, {})
    (model / "config.json").write_text(json.dumps({"text_config": CONFIG}))
    with pytest.raises(UncachedError, match="1 of the model's 2 layers"):
        derive(args(model), pool(num_layers=1), SETTINGS, {})


def test_bytes_that_hold_one_value_each(model: Path) -> None:
    for dtype in ("int8", "float8_e4m3fn", "int16", "bfloat16"):
        assert derive(args(model), pool(dtype=dtype), SETTINGS, {})[1].tokens_per_block == 4
    # A backend may have taken blocks of its own size, which says nothing against these.
    wrong = args(model, kv_cache_config=CacheConfig(tokens_per_block=32))
    for dtype in ("float8_e4m3fn", "int16", "bfloat16"):
        assert derive(wrong, pool(dtype=dtype), SETTINGS, {})[1].tokens_per_block == 4


def test_four_bits_are_cached_where_their_scales_are_shown(model: Path) -> None:
    engine = args(model, kv_cache_config=CacheConfig(dtype="nvfp4"))
    with pytest.raises(UncachedError, match="in a second pool"):
        derive(engine, SHAPE, SETTINGS, {})
    with pytest.raises(UncachedError, match="does not show all scales"):
        derive(engine, LAYOUT, SETTINGS, {})
    for dtype in ("float4_e2m1fn_x2", "NVFP4"):  # the model's files say so, the arguments do not
        with pytest.raises(UncachedError, match="does not show all scales"):
            derive(args(model), replace(LAYOUT, dtype=dtype), SETTINGS, {})
        derive(args(model), replace(LAYOUT, dtype=dtype, has_scales=True), SETTINGS, {})
    shown = replace(LAYOUT, has_scales=True)
    assert derive(engine, shown, SETTINGS, {})[0].quantization.startswith("nvfp4")


def test_arguments_and_models_that_are_refused(model: Path) -> None:
    window = args(model, kv_cache_config=CacheConfig(max_attention_window=[8]))
    with pytest.raises(UncachedError, match="max_attention_window"):
        derive(window, SHAPE, SETTINGS, {})
    derive(window, LAYOUT, SETTINGS, {})
    (model / "config.json").write_text(json.dumps(CONFIG | {"layer_types": ["mamba"]}))
    with pytest.raises(UncachedError, match="recurrent"):
        derive(args(model), SHAPE, SETTINGS, {})


def test_weights_must_be_told_apart(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(UncachedError, match="TRTLLM_KVKEEP_WEIGHTS_EPOCH"):
        derive(args(model), SHAPE, SETTINGS, {})
    derive(args(model), SHAPE, replace(SETTINGS, weights_epoch="1"), {})


def test_weights_of_draft_layers_must_be_told_apart_too(model: Path, tmp_path: Path) -> None:
    # Their KV lies in the same pages, and their weights in other files.
    drafts = tmp_path / "drafts"
    drafts.mkdir()
    config = {"decoding_type": "Eagle", "speculative_model_dir": drafts}
    engine = args(model, speculative_config=config)
    with pytest.raises(UncachedError, match="TRTLLM_KVKEEP_WEIGHTS_EPOCH"):
        derive(engine, SHAPE, SETTINGS, {})
    derive(engine, SHAPE, replace(SETTINGS, weights_epoch="1"), {})
    prints = set()
    for weights in (b"a", b"b", b"a"):
        (drafts / "model.safetensors").write_bytes(weights * 100)
        prints.add(fingerprint(derive(engine, SHAPE, SETTINGS, {})[0]))
    assert len(prints) == 2
    plain = args(model, speculative_config=SimpleNamespace(decoding_type="MTP"))
    assert "draft_weights" not in derive(plain, SHAPE, SETTINGS, {})[0].overrides


def test_chunk_sizes() -> None:
    assert chunk_blocks_of(0, 32) == 1
    assert chunk_blocks_of(256, 32) == 8
    for bad in (48, 31, 32 * 257):
        with pytest.raises(ConfigError, match="valid are 32, 64, 96") as caught:
            chunk_blocks_of(bad, 32)
        assert caught.value.code == ErrorCode.CHUNK_SIZE_INVALID
