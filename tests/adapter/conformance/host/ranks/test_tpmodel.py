"""The split model: equal bits on all ranks and however a token came to be, close to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from adapter.conformance.host.forward import ForwardEntry  # noqa: E402
from adapter.conformance.host.model import Transformer  # noqa: E402
from adapter.conformance.host.ranks.reducer import Reducer  # noqa: E402
from adapter.conformance.host.ranks.tpmodel import TensorParallelTransformer  # noqa: E402
from adapter.conformance.host.weights import (  # noqa: E402
    LATENT,
    TINY,
    ModelConfig,
    make_weights,
)
from tests.adapter.conformance.host.ranks.meeting import LIMIT_S, star, together  # noqa: E402

pytestmark = pytest.mark.torch

BLOCK = 4
NUM_BLOCKS = 24
SMALL = replace(TINY, max_position_embeddings=48)
SMALL_LATENT = replace(LATENT, num_attention_heads=4, max_position_embeddings=48)
WINDOWS = replace(SMALL, layer_windows=(0, 6, 1))
Part = tuple[list[int], int, int, Sequence[int]]


def run(model: Transformer, parts: Sequence[Part]) -> list[Any]:
    entries = [
        ForwardEntry(start, end - start, tokens[start:end], (tuple(blocks),), True, True, None)
        for tokens, start, end, blocks in parts
    ]
    model.begin(entries)
    for layer in range(model.num_layers):
        model.layer(layer, entries)
    model.end(entries)
    return [model.sample(entry)[1] for entry in entries]


class Split:
    """All ranks of a model, as threads."""

    def __init__(self, config: ModelConfig, size: int) -> None:
        torch.set_num_threads(1)
        weights, wires = make_weights(config), star(size)
        self.models = [
            TensorParallelTransformer(
                config,
                weights,
                BLOCK,
                rank=rank,
                size=size,
                reducer=Reducer(rank, wires[rank], LIMIT_S),
            )
            for rank in range(size)
        ]
        self.pools = []
        for model in self.models:
            shape = model.pool_shape(NUM_BLOCKS)
            self.pools.append(torch.empty(shape.shape, dtype=getattr(torch, shape.dtype_name)))
            model.bind_pool(self.pools[-1])
        self.poison()

    def poison(self) -> None:
        for pool in self.pools:
            pool.fill_(float("nan"))

    def forward(self, parts: Sequence[Part]) -> list[Any]:
        """Logits of each part's last token; equal on all ranks."""
        results = together([lambda m=model: run(m, parts) for model in self.models])  # type: ignore[misc]
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
        return results[0]


SPLITS = {
    "tp2": Split(SMALL, 2),
    "tp4": Split(SMALL, 4),
    "latent2": Split(SMALL_LATENT, 2),
    "windows2": Split(WINDOWS, 2),
}
TOKENS = st.lists(st.integers(0, 255), min_size=3, max_size=24)


@pytest.mark.parametrize("name", SPLITS)
@settings(max_examples=10)
@given(tokens=TOKENS, other=TOKENS, data=st.data())
def test_batch_invariance(
    name: str, tokens: list[int], other: list[int], data: st.DataObject
) -> None:
    split, length = SPLITS[name], len(tokens)
    split.poison()
    (alone,) = split.forward([(tokens, 0, length, range(12))])
    assert torch.isfinite(alone).all()
    order = data.draw(st.permutations(range(NUM_BLOCKS)))
    mine, theirs = order[:12], order[12:]
    cut = data.draw(st.integers(1, length - 1))
    split.poison()
    split.forward([(other, 0, len(other) - 1, theirs), (tokens, 0, cut, mine)])
    rest: list[Part] = [
        (tokens, cut, length, mine),
        (other, len(other) - 1, len(other), theirs),
    ]
    if data.draw(st.booleans()):
        rest.reverse()
    results = split.forward(rest)
    assert torch.equal(results[rest.index((tokens, cut, length, mine))], alone)


@pytest.mark.parametrize(
    ("config", "name"), [(SMALL, "tp2"), (SMALL, "tp4"), (SMALL_LATENT, "latent2")]
)
def test_it_is_the_same_model(config: ModelConfig, name: str) -> None:
    whole = Transformer(config, make_weights(config), BLOCK)
    whole.bind_pool(torch.empty(whole.pool_shape(NUM_BLOCKS).shape))
    tokens = [3, 141, 59, 26, 53, 58, 97]
    (expected,) = run(whole, [(tokens, 0, 7, range(2))])
    (logits,) = SPLITS[name].forward([(tokens, 0, 7, range(2))])
    assert torch.allclose(logits, expected, atol=1e-3)
    assert int(logits.argmax()) == int(expected.argmax())


def test_ranks_hold_their_heads_and_a_latent_is_held_by_all() -> None:
    tokens = [3, 141, 59, 26, 53, 58, 97, 93]
    for name in ("tp2", "latent2"):
        SPLITS[name].poison()
        SPLITS[name].forward([(tokens, 0, 8, range(2))])
    first, second = (pool[:2] for pool in SPLITS["tp2"].pools)
    assert not torch.equal(first, second)
    first, second = (pool[:2] for pool in SPLITS["latent2"].pools)
    assert torch.equal(first, second)
