"""One rank's share of a model's weights under tensor parallelism.

Query heads, and the key/value heads they use, are dealt out in order; with fewer key/value heads
than ranks, several ranks hold the same head, and a latent is held by all (host contract §7). The
output projections are cut along their input, so each rank has partial sums of them.

Must not know: processes, the forward. Pure functions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adapter.conformance.host.weights import FloatArray, ModelConfig


def shard(
    config: ModelConfig, weights: dict[str, FloatArray], rank: int, size: int
) -> tuple[ModelConfig, dict[str, FloatArray]]:
    """Cut a model for one rank.

    Args:
        config: Geometry of the whole model.
        weights: float32 arrays by checkpoint name.
        rank: 0 to ``size - 1``.
        size: Ranks.

    Returns:
        Geometry and weights of the rank's share, in the same form.

    Raises:
        ValueError: If heads or the inner size cannot be dealt out evenly.
    """
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % size or config.intermediate_size % size or max(kv_heads, size) % min(kv_heads, size):
        raise ValueError(
            f"{heads} heads, {kv_heads} key/value heads and {config.intermediate_size} inner "
            f"elements cannot be dealt out to {size} ranks"
        )
    own_kv = max(1, kv_heads // size)
    part = replace(
        config,
        num_attention_heads=heads // size,
        num_key_value_heads=own_kv,
        intermediate_size=config.intermediate_size // size,
    )
    query = _span(rank, heads // size, config.head_dim)
    kv = _span(rank * kv_heads // size // own_kv, own_kv, config.head_dim)
    inner = _span(rank, config.intermediate_size // size, 1)
    return part, {name: _cut(name, array, query, kv, inner) for name, array in weights.items()}


def _span(index: int, count: int, width: int) -> slice:
    return slice(index * count * width, (index + 1) * count * width)


def _cut(name: str, array: FloatArray, query: slice, kv: slice, inner: slice) -> FloatArray:
    part = name.rpartition(".weight")[0].rpartition(".")[2]
    rows = {"q_proj": query, "k_proj": kv, "v_proj": kv, "gate_proj": inner, "up_proj": inner}
    columns = {"o_proj": query, "down_proj": inner}
    if part in rows:
        array = array[rows[part]]
    elif part in columns:
        array = array[:, columns[part]]
    # A copy of its own: the alignment of a view would depend on the rank.
    return np.array(array, dtype=np.float32, order="C")
