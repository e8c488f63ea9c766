"""A small real decoder-only transformer whose KV lives in the shared pool.

Batch-invariant by construction: one token at a time, every operation has the
same shape and the same memory alignment whatever the batch, the chunking or the
hit, and attention always runs over the padded maximum length with absent
positions as zeros behind a -inf bias. KV is rounded to the cache's element type before it
is used, so a computed token and a loaded one are the same. So logits and KV are equal bit for bit
(``torch.equal``) however a token came to be computed, and only pages at valid
positions within the window are ever read: NaN poison in a page that counts as valid
shows, and a page that is needed and absent (-1) raises.

Must not know: requests, the connector, streams. Its steps run on X's thread,
``sample`` on M's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from adapter.conformance.host.errors import PageMismatchError
from adapter.conformance.host.forward import ForwardEntry, LayerPages, PoolShape, v1_layers
from adapter.conformance.host.weights import FloatArray, ModelConfig

KV_DTYPES: Final = {"auto": "float32", "fp8": "float8_e4m3fn", "bfloat16": "bfloat16"}
"""``kv_cache_config.dtype`` and the element type of the cache; the model is float32."""
_FP8_MAX: Final = 448.0


@dataclass
class _Layer:
    """One layer's weights, float32, fused where inputs are shared, norms folded in.

    Attributes:
        qkv: ``[q + k + v + q + k, hidden]``; the last two rows are q and k with
            their halves swapped and signed, which makes rotary two products. A latent is
            k and v in one: no rows for v.
        out: ``[hidden, q]``.
        gate_up: ``[2 * inner, hidden]``.
        down: ``[hidden, inner]``.
    """

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


class Transformer:
    """RMSNorm, rotary, grouped-query attention, gated MLP; float32 throughout.

    Args:
        config: Geometry.
        weights: float32 arrays by checkpoint name.
        tokens_per_block: Tokens a page holds.
        kv_dtype: Name of the cache's element type, one of the values of ``KV_DTYPES``.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, FloatArray],
        tokens_per_block: int,
        *,
        kv_dtype: str = "float32",
    ) -> None:
        self.config = config
        self.tokens_per_block = tokens_per_block
        self._padded = -(-config.max_position_embeddings // tokens_per_block) * tokens_per_block
        self._num_kv = config.num_key_value_heads * config.head_dim
        self._qk_sizes = [config.num_attention_heads * config.head_dim, self._num_kv]
        self._num_value = self._num_kv if config.kv_factor == 2 else 0
        self._qkv_sizes = [sum(self._qk_sizes), self._num_value, sum(self._qk_sizes)]
        self._kv_dtype: torch.dtype = getattr(torch, kv_dtype)
        tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
        self._embed = tensors["model.embed_tokens.weight"]
        head = tensors.get("lm_head.weight", self._embed)
        self._head = head * tensors["model.norm.weight"]
        self._layers = [self._fuse(tensors, i) for i in range(config.num_hidden_layers)]
        # Lists of rows: indexing a list is far cheaper than indexing a tensor.
        self._cos, self._sin = (list(table.unbind()) for table in self._rotary())
        self._biases = {window: self._bias(window) for window in set(config.windows)}
        self._pages: list[LayerPages] = []

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return self.config.num_hidden_layers

    @property
    def max_seq_len(self) -> int:
        """Longest sequence in tokens."""
        return self.config.max_position_embeddings

    @property
    def windows(self) -> tuple[int, ...]:
        """Attention window of each layer in tokens, 0 for full attention."""
        return self.config.windows

    def pool_shape(self, num_blocks: int) -> PoolShape:
        """Shape of the pool, elements laid out (heads, tokens, dim)."""
        elements = self._num_kv * self.tokens_per_block
        shape = (num_blocks, self.num_layers, self.config.kv_factor, elements)
        return PoolShape(shape, str(self._kv_dtype).rpartition(".")[2])

    def bind_pool(self, pool: Tensor) -> None:
        """Use the V1 ``pool`` (as ``pool_shape`` says) from now on."""
        self.bind_layers(v1_layers(pool))

    def bind_layers(self, layers: Sequence[LayerPages]) -> None:
        """Keep KV there from now on."""
        inner = (self.config.num_key_value_heads, self.tokens_per_block, self.config.head_dim)
        self._pages = [
            LayerPages(layer.group, tuple(part.view(len(part), *inner) for part in layer.parts))
            for layer in layers
        ]

    def new_memo(self, prompt: Sequence[int]) -> Any:
        """This model remembers nothing outside the pool."""
        return None

    @torch.inference_mode()
    def begin(self, entries: Sequence[ForwardEntry]) -> None:
        """Look up embeddings: one row per token."""
        for entry in entries:
            entry.state = [self._embed[token].clone() for token in entry.token_ids()]

    @torch.inference_mode()
    def layer(self, index: int, entries: Sequence[ForwardEntry]) -> None:
        """Run one layer over each entry, token by token, and write its KV."""
        weights, bias = self._layers[index], self._biases[self.config.windows[index]]
        for entry in entries:
            keys, values = self._gather(index, entry)
            entry.state = [
                self._token(weights, x, entry.start + i, keys, values, bias)
                for i, x in enumerate(entry.state)
            ]
            self._scatter(index, entry, keys, values)

    @torch.inference_mode()
    def end(self, entries: Sequence[ForwardEntry]) -> None:
        """Project the last token of each sampled entry: ``float32[vocab]``."""
        for entry in entries:
            if entry.wants_sample:
                entry.output = torch.mv(self._head, self._rms(entry.state[-1]))

    def sample(self, entry: ForwardEntry) -> tuple[int, Any]:
        """The greedy token and its logits ``float32[vocab]``."""
        return int(torch.argmax(entry.output)), entry.output

    def _token(
        self,
        w: _Layer,
        x: Tensor,
        position: int,
        keys: Tensor,
        values: Tensor,
        bias: Sequence[Tensor],
    ) -> Tensor:
        x = self._attend(w, x, position, keys, values, bias).add_(x)
        return self._feed_forward(w, x).add_(x)

    def _attend(
        self,
        w: _Layer,
        x: Tensor,
        position: int,
        keys: Tensor,
        values: Tensor,
        bias: Sequence[Tensor],
    ) -> Tensor:
        heads, dim = self.config.num_key_value_heads, self.config.head_dim
        plain, value, swapped = torch.mv(w.qkv, self._rms(x)).split(self._qkv_sizes)
        turned = (plain * self._cos[position]).add_(swapped * self._sin[position])
        query, key = turned.split(self._qk_sizes)
        key = self._rounded(key)
        value = self._rounded(value) if self._num_value else key
        keys.select(2, position).copy_(key.view(heads, dim))
        values.select(1, position).copy_(value.view(heads, dim))
        scores = torch.bmm(query.view(heads, -1, dim), keys).add_(bias[position])
        mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
        return torch.mv(w.out, mixed.view(-1))

    def _feed_forward(self, w: _Layer, x: Tensor) -> Tensor:
        gate, up = torch.mv(w.gate_up, self._rms(x)).split(self.config.intermediate_size)
        return torch.mv(w.down, torch.nn.functional.silu(gate).mul_(up))

    def _rms(self, x: Tensor) -> Tensor:
        # The norm's weight is folded into the product that follows.
        return x * torch.dot(x, x).div_(x.numel()).add_(self.config.rms_norm_eps).rsqrt_()

    def _rounded(self, x: Tensor) -> Tensor:
        # What the cache would give back; beyond its largest value FP8 has only NaN.
        if self._kv_dtype is torch.float32:
            return x
        if self._kv_dtype is torch.float8_e4m3fn:
            x = x.clamp(-_FP8_MAX, _FP8_MAX)
        return x.to(self._kv_dtype).float()

    def _gather(self, layer: int, entry: ForwardEntry) -> tuple[Tensor, Tensor]:
        # Padded to one length for every entry: equal shapes whatever the context holds.
        heads, dim = self.config.num_key_value_heads, self.config.head_dim
        keys = torch.zeros(heads, dim, self._padded)
        values = torch.zeros(heads, self._padded, dim)
        size, start, window = self.tokens_per_block, entry.start, self.config.windows[layer]
        first_seen = max(0, start - window + 1) if window else 0
        first, last = first_seen // size, -(-start // size)
        if first < last:
            pages = self._pages[layer]
            ids = torch.tensor(self._ids(pages.group, entry, first, last))
            read = [part.index_select(0, ids).float() for part in pages.parts]
            by_block = keys.view(heads, dim, -1, size)[:, :, first:last]
            by_block.copy_(read[0].permute(1, 3, 0, 2))
            values.view(heads, -1, size, dim)[:, first:last].copy_(read[-1].transpose(0, 1))
            # What follows in the last page is not computed yet, what precedes the window may
            # never have been: poison, not context.
            for begin, end in ((first * size, first_seen), (start, last * size)):
                keys[:, :, begin:end] = 0
                values[:, begin:end] = 0
        return keys, values

    def _scatter(self, layer: int, entry: ForwardEntry, keys: Tensor, values: Tensor) -> None:
        pages, size = self._pages[layer], self.tokens_per_block
        for block, first, last in self._segments(entry):
            page = self._ids(pages.group, entry, block, block + 1)[0]
            inside = slice(first - block * size, last - block * size)
            pages.parts[0][page][:, inside] = keys[:, :, first:last].transpose(1, 2)
            if len(pages.parts) > 1:
                pages.parts[1][page][:, inside] = values[:, first:last]

    def _ids(self, group: int, entry: ForwardEntry, first: int, last: int) -> Sequence[int]:
        # -1 is a valid subscript: the pool's last page, some other request's (contract §7).
        ids = entry.tables[group][first:last]
        if len(ids) < last - first or min(ids) < 0:
            raise PageMismatchError(f"blocks {first} to {last} of group {group} need pages: {ids}")
        return ids

    def _segments(self, entry: ForwardEntry) -> Iterator[tuple[int, int, int]]:
        position, end = entry.start, entry.start + entry.num_tokens
        while position < end:
            block = position // self.tokens_per_block
            last = min(end, (block + 1) * self.tokens_per_block)
            yield block, position, last
            position = last

    def _fuse(self, tensors: dict[str, Tensor], index: int) -> _Layer:
        prefix = f"model.layers.{index}."
        part = {
            name: tensors[f"{prefix}{name}.weight"]
            for name in (
                *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
                *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
                *("input_layernorm", "post_attention_layernorm"),
            )
        }
        query = part["self_attn.q_proj"] * self.config.head_dim**-0.5
        key, value = part["self_attn.k_proj"], part["self_attn.v_proj"]
        rows = (query, key, value) if self._num_value else (query, key)
        fused = (*rows, self._swap_halves(query), self._swap_halves(key))
        return _Layer(
            qkv=torch.cat(fused) * part["input_layernorm"],
            out=part["self_attn.o_proj"],
            gate_up=torch.cat((part["mlp.gate_proj"], part["mlp.up_proj"]))
            * part["post_attention_layernorm"],
            down=part["mlp.down_proj"],
        )

    def _swap_halves(self, weight: Tensor) -> Tensor:
        half = self.config.head_dim // 2
        heads = weight.view(-1, 2, half, weight.shape[1])
        return torch.stack((-heads[:, 1], heads[:, 0]), dim=1).reshape(weight.shape)

    def _bias(self, window: int) -> list[Tensor]:
        """Row p: 0 where position p looks, -inf where it does not."""
        ones = torch.ones(self._padded, self._padded, dtype=torch.bool)
        blocked = torch.triu(ones, 1)
        if window:
            blocked |= torch.tril(ones, -window)
        return list(torch.zeros(ones.shape).masked_fill_(blocked, float("-inf")).unbind())

    def _rotary(self) -> tuple[Tensor, Tensor]:
        dim, config = self.config.head_dim, self.config
        rates = config.rope_theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = torch.arange(self._padded, dtype=torch.float64)[:, None] * rates[None, :]
        num_heads = config.num_attention_heads + config.num_key_value_heads
        tiled = torch.cat((angles, angles), dim=1).repeat(1, num_heads)
        return tiled.cos().float().contiguous(), tiled.sin().float().contiguous()
