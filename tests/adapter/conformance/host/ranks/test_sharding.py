"""Shares of a model: the whole when put together again, heads replicated where there are few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adapter.conformance.host.ranks.sharding import shard
from adapter.conformance.host.weights import LATENT, TINY, WIDE, ModelConfig, make_weights

LATENT_4 = replace(LATENT, num_attention_heads=4)


@pytest.mark.parametrize(
    ("config", "size"), [(TINY, 1), (TINY, 2), (TINY, 4), (WIDE, 1), (LATENT_4, 2), (LATENT_4, 4)]
)
def test_partial_products_add_up_to_the_whole(config: ModelConfig, size: int) -> None:
    weights = make_weights(config)
    shares = [shard(config, weights, rank, size) for rank in range(size)]
    rng = np.random.default_rng(1)
    query = rng.standard_normal(config.num_attention_heads * config.head_dim)
    name = "model.layers.1.self_attn.o_proj.weight"
    parts = zip(shares, np.split(query, size), strict=True)
    total = sum(share[1][name] @ part for share, part in parts)
    assert np.allclose(total, weights[name] @ query)
    for key in ("self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj"):
        full = f"model.layers.0.{key}.weight"
        assert np.array_equal(np.concatenate([share[full] for _, share in shares]), weights[full])
    for part, share in shares:
        assert np.array_equal(share["model.norm.weight"], weights["model.norm.weight"])
        assert part.head_dim == config.head_dim
        rows = part.num_key_value_heads * part.head_dim
        assert len(share["model.layers.2.self_attn.k_proj.weight"]) == rows


def test_few_key_heads_are_held_by_several_ranks() -> None:
    weights = make_weights(TINY)
    name = "model.layers.0.self_attn.k_proj.weight"
    shares = [shard(TINY, weights, rank, 4)[1][name] for rank in range(4)]
    assert np.array_equal(shares[0], shares[1])
    assert np.array_equal(shares[2], shares[3])
    assert np.array_equal(np.concatenate(shares[::2]), weights[name])


def test_a_latent_is_held_by_all() -> None:
    weights = make_weights(LATENT_4)
    name = "model.layers.0.self_attn.k_proj.weight"
    for rank in range(2):
        config, share = shard(LATENT_4, weights, rank, 2)
        assert np.array_equal(share[name], weights[name])
        assert config.kv_factor == 1


@pytest.mark.parametrize(("config", "size"), [(TINY, 3), (LATENT, 2), (WIDE, 2)])
def test_what_cannot_be_dealt_out_is_refused(config: ModelConfig, size: int) -> None:
    with pytest.raises(ValueError, match="cannot be dealt out"):
        shard(config, make_weights(config), 0, size)
