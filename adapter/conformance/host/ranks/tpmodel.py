"""A transformer split over ranks: each has some heads, partial sums are added up by all-reduce.

As batch-invariant as the whole one: per token the same operations on the same shapes, and the
all-reduce, one per half of a layer for the whole batch, adds element by element in rank order. So
at equal TP degree logits are equal bit for bit, on every rank.

Must not know: the connector, the control path. Its steps run on X's thread, ``sample`` on M's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from adapter.conformance.host.forward import ForwardEntry
from adapter.conformance.host.model import Transformer
from adapter.conformance.host.ranks.reducer import Reducer
from adapter.conformance.host.ranks.sharding import shard
from adapter.conformance.host.weights import FloatArray, ModelConfig


class TensorParallelTransformer(Transformer):
    """One rank's part of the model.

    Args:
        config: Geometry of the whole model.
        weights: The whole model's, float32 arrays by checkpoint name.
        tokens_per_block: Tokens a page holds.
        rank: This rank.
        size: Ranks.
        reducer: Adds up partial sums.
        kv_dtype: Name of the cache's element type.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, FloatArray],
        tokens_per_block: int,
        *,
        rank: int,
        size: int,
        reducer: Reducer,
        kv_dtype: str = "float32",
    ) -> None:
        part, part_weights = shard(config, weights, rank, size)
        super().__init__(part, part_weights, tokens_per_block, kv_dtype=kv_dtype)
        self._reducer = reducer

    @torch.inference_mode()
    def layer(self, index: int, entries: Sequence[ForwardEntry]) -> None:
        """Run one layer over a batch: attention, all-reduce, feed-forward, all-reduce."""
        weights, bias = self._layers[index], self._biases[self.config.windows[index]]
        partial = []
        for entry in entries:
            keys, values = self._gather(index, entry)
            partial += [
                self._attend(weights, x, entry.start + i, keys, values, bias)
                for i, x in enumerate(entry.state)
            ]
            self._scatter(index, entry, keys, values)
        self._add(entries, partial)
        self._add(entries, (self._feed_forward(weights, x) for e in entries for x in e.state))

    def _add(self, entries: Sequence[ForwardEntry], partial: Iterable[Tensor]) -> None:
        rows = iter(self._reducer.sum(torch.stack(list(partial))).unbind())
        for entry in entries:
            # New tensors: a row's alignment would depend on its place in the batch.
            entry.state = [x + next(rows) for x in entry.state]
