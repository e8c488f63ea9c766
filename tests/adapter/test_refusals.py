"""Engines that cannot be cached say why in one line; those that can are let through."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapter.refusals import (
    UncachedError,
    attention_ranks,
    draft_models,
    is_nvfp4,
    notes,
    refuse_model,
    refuse_unsupported,
)
from tests.adapter.hostlike import Args, CacheConfig


def args(**changes: Any) -> Any:
    """Arguments with attributes that the stand-in lacks, too."""
    known = {name: value for name, value in changes.items() if hasattr(Args(), name)}
    made = replace(Args(), **known)
    for name in changes.keys() - known.keys():
        setattr(made, name, changes[name])
    return made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_config": CacheConfig(enable_block_reuse=False)}, "enable_block_reuse"),
        ({"kv_cache_config": CacheConfig(host_cache_size=1 << 30)}, "host_cache_size"),
        ({"kv_cache_config": CacheConfig(disk_cache_size=1)}, "disk_cache_size"),
        ({"kv_cache_config": CacheConfig(dtype="nvfp4")}, "NVFP4"),
        ({"quant_config": SimpleNamespace(kv_cache_quant_algo="NVFP4")}, "NVFP4"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"context_parallel_size": 2}, "context_parallel_size"),
        ({"max_beam_width": 4}, "max_beam_width"),
        ({"tensor_parallel_size": 16, "gpus_per_node": 8}, "gpus_per_node 8.*one server"),
        ({"tensor_parallel_size": 9, "gpus_per_node": 8}, "gpus_per_node 8.*one server"),
        ({"kv_cache_config": CacheConfig(max_attention_window=[128])}, "max_attention_window"),
    ],
)
def test_engines_that_cannot_be_cached(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UncachedError, match=words) as caught:
        refuse_unsupported(args(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"tensor_parallel_size": 8, "gpus_per_node": 8},
        {"tensor_parallel_size": 8, "gpus_per_node": None},
        {"tensor_parallel_size": 16, "gpus_per_node": 8, "enable_attention_dp": True},
        {"max_seq_len": 64, "kv_cache_config": CacheConfig(max_attention_window=[64])},
    ],
)
def test_engines_that_can(changes: dict[str, Any]) -> None:
    refuse_unsupported(args(**changes))


def test_a_short_window_is_described_by_the_second_manager() -> None:
    engine = args(kv_cache_config=CacheConfig(max_attention_window=[128]))
    refuse_unsupported(engine, is_v2=True)


def test_four_bits_are_described_by_the_second_manager() -> None:
    for quantised in (
        {"kv_cache_config": CacheConfig(dtype="nvfp4")},
        {"quant_config": SimpleNamespace(kv_cache_quant_algo="NVFP4")},
    ):
        assert is_nvfp4(args(**quantised))
        refuse_unsupported(args(**quantised), is_v2=True)
    assert not is_nvfp4(args(kv_cache_config=CacheConfig(dtype="fp8")))


class DraftTargetDecodingConfig:
    """A config whose class alone says what it is."""


class MTPDecodingConfig:
    """The model's own draft layers."""


@pytest.mark.parametrize(
    ("config", "is_refused"),
    [
        (None, False),
        (DraftTargetDecodingConfig(), True),
        (MTPDecodingConfig(), False),
        ({"decoding_type": "Draft_Target", "speculative_model_dir": "/m"}, True),
        (SimpleNamespace(decoding_type="DraftTarget"), True),
        ({"decoding_type": "NGram"}, False),
        ({"decoding_type": "MTP", "num_nextn_predict_layers": 1}, False),
        ({"decoding_type": "Eagle", "speculative_model_dir": "/m"}, False),
        ({"decoding_type": "Eagle", "speculative_model": "m", "eagle3_one_model": True}, False),
        ({"decoding_type": "Eagle", "speculative_model": "m", "eagle3_one_model": False}, True),
        ({"decoding_type": "MTP", "mtp_eagle_one_model": False}, False),
        (SimpleNamespace(decoding_type="Eagle", speculative_model_dir="/m"), False),
    ],
)
def test_a_draft_model_is_refused_and_drafts_of_the_model_itself_are_not(
    config: Any, is_refused: bool
) -> None:
    engine = args(speculative_config=config)
    if not is_refused:
        refuse_unsupported(engine)
        return
    with pytest.raises(UncachedError, match="draft model") as caught:
        refuse_unsupported(engine)
    assert "\n" not in str(caught.value)


def test_models_that_drafts_come_from() -> None:
    assert draft_models(None) == ()
    assert draft_models(MTPDecodingConfig()) == ()
    assert draft_models({"speculative_model_dir": Path("/m"), "speculative_model": "/m"}) == ("/m",)
    assert draft_models(SimpleNamespace(speculative_model="a/b")) == ("a/b",)


@pytest.mark.parametrize(
    "config",
    [
        {"layer_types": ["full_attention", "linear_attention"]},
        {"text_config": {"layers_block_type": ["mamba", "attention"]}},
        {"hybrid_override_pattern": "M-M*"},
        {"ssm_cfg": {"layer": "Mamba2"}},
    ],
)
def test_models_with_state_outside_of_pages(config: dict[str, Any]) -> None:
    with pytest.raises(UncachedError, match="recurrent"):
        refuse_model(config)


def test_models_whose_state_is_in_pages() -> None:
    refuse_model({})
    refuse_model({"layer_types": ["full_attention", "sliding_attention"], "text_config": None})


def test_partial_reuse_is_worth_a_line() -> None:
    assert notes(args()) == ()
    (line,) = notes(args(kv_cache_config=CacheConfig(enable_partial_reuse=True)))
    assert "enable_partial_reuse" in line


def test_ranks_that_split_the_heads() -> None:
    assert attention_ranks(SimpleNamespace()) == 1
    assert attention_ranks(args(tensor_parallel_size=4)) == 4
    assert attention_ranks(args(tensor_parallel_size=4, enable_attention_dp=True)) == 1
