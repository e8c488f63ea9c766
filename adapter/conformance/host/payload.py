"""A forward without a transformer: page bytes are a function of the token chain.

Each full block's page is filled from a digest over all tokens up to its end, and
each page that counts as computed before a request's first forward (loaded or
matched on the device) is compared with what it must hold. Fast enough to replay
traces of long requests with small pages, and exact: a page of another block,
tenant or position cannot pass.

Must not know: requests, the connector, streams. Its steps run on X's thread,
``sample`` on M's.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from adapter.conformance.host.errors import PageMismatchError
from adapter.conformance.host.forward import ForwardEntry, LayerPages, PoolShape, v1_layers


@dataclass
class _Memo:
    """One request's chain: all tokens fed, and one digest per full block."""

    tokens: array[int]
    digests: list[bytes] = field(default_factory=list)


class PayloadModel:
    """Deterministic page contents in place of attention.

    Args:
        tokens_per_block: Tokens a page stands for.
        bytes_per_token: Bytes a token takes in one layer and one of K and V.
        num_layers: Layers of the pool; also the layer hooks per forward.
        vocab_size: Sampled tokens are below it.
        max_seq_len: Longest sequence in tokens.
        salt: Another salt is another model: other bytes for the same tokens.
        kv_factor: 2 for K and V, 1 for a latent.
        windows: Attention window of each layer in tokens, 0 for full; None for all full.
    """

    def __init__(
        self,
        tokens_per_block: int,
        *,
        bytes_per_token: int = 1,
        num_layers: int = 1,
        vocab_size: int = 32000,
        max_seq_len: int = 1 << 18,
        salt: bytes = b"payload",
        kv_factor: int = 2,
        windows: Sequence[int] | None = None,
    ) -> None:
        self.tokens_per_block = tokens_per_block
        self.num_verified_pages = 0
        self._bytes_per_token = bytes_per_token
        self._num_layers = num_layers
        self._vocab_size = vocab_size
        self._max_seq_len = max_seq_len
        self._salt = salt
        self._kv_factor = kv_factor
        self._windows = (0,) * num_layers if windows is None else tuple(windows)
        if len(self._windows) != num_layers:
            raise ValueError(f"{len(self._windows)} windows for {num_layers} layers")
        self._pages: list[LayerPages] = []

    @property
    def num_layers(self) -> int:
        """Layers of the pool."""
        return self._num_layers

    @property
    def max_seq_len(self) -> int:
        """Longest sequence in tokens."""
        return self._max_seq_len

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self._num_layers * self._layer_bytes

    @property
    def windows(self) -> tuple[int, ...]:
        """Attention window of each layer in tokens, 0 for full attention."""
        return self._windows

    @property
    def _layer_bytes(self) -> int:
        return self._kv_factor * self.tokens_per_block * self._bytes_per_token

    def pool_shape(self, num_blocks: int) -> PoolShape:
        """Shape of the pool: bytes."""
        elements = self.tokens_per_block * self._bytes_per_token
        return PoolShape((num_blocks, self._num_layers, self._kv_factor, elements), "uint8")

    def bind_pool(self, pool: Any) -> None:
        """Use the V1 ``pool`` (as ``pool_shape`` says) from now on."""
        self.bind_layers(v1_layers(pool))

    def bind_layers(self, layers: Sequence[LayerPages]) -> None:
        """Keep bytes there from now on."""
        self._pages = list(layers)

    def new_memo(self, prompt: Sequence[int]) -> _Memo:
        """Begin a chain; nothing is hashed before the first forward."""
        return _Memo(array("i", prompt))

    def begin(self, entries: Sequence[ForwardEntry]) -> None:
        """Append fed tokens."""
        for entry in entries:
            memo: _Memo = entry.memo
            tokens = entry.token_ids()
            # What stood there before may have been a draft that was not accepted.
            del memo.tokens[entry.start :]
            del memo.digests[entry.start // self.tokens_per_block :]
            memo.tokens.extend(tokens)
            self._extend(memo, (entry.start + entry.num_tokens) // self.tokens_per_block)
            entry.state = {}
            if entry.first:
                self.num_verified_pages += entry.start // self.tokens_per_block

    def layer(self, index: int, entries: Sequence[ForwardEntry]) -> None:
        """Fill this layer's share of each page completed by the forward.

        At a request's first forward this layer's share of the prefix is checked before: no earlier,
        for a connector may load each layer just in time.

        Raises:
            PageMismatchError: If a page before ``start`` holds other bytes.
        """
        pages = self._pages[index]
        for entry in entries:
            if entry.first:
                self._verify(index, entry)
            first = entry.start // self.tokens_per_block
            last = (entry.start + entry.num_tokens) // self.tokens_per_block
            for block in range(first, last):
                page, content = self._page(pages, entry, block), self._content(entry.memo, block)
                for part, data in zip(pages.parts, content[index], strict=True):
                    part[page] = data

    def end(self, entries: Sequence[ForwardEntry]) -> None:
        """The output is a digest of the chain and the tail's tokens."""
        for entry in entries:
            if entry.wants_sample:
                memo, end = entry.memo, entry.start + entry.num_tokens
                num_full = end // self.tokens_per_block
                tail = memo.tokens[num_full * self.tokens_per_block : end]
                parent = memo.digests[num_full - 1] if num_full else self._salt
                entry.output = hashlib.sha256(parent + tail.tobytes()).digest()

    def sample(self, entry: ForwardEntry) -> tuple[int, Any]:
        """A token drawn from the output; there are no logits."""
        return int.from_bytes(entry.output[:8], "little") % self._vocab_size, None

    def expected_page(self, tokens: Sequence[int]) -> bytes:
        """What the page of the last block of ``tokens`` must hold.

        Args:
            tokens: Whole blocks of token ids, from the beginning of the prompt.

        Returns:
            ``page_bytes`` bytes.
        """
        memo = self.new_memo(tokens)
        num_blocks = len(tokens) // self.tokens_per_block
        self._extend(memo, num_blocks)
        return bytes(self._content(memo, num_blocks - 1).flatten().tolist())

    def _extend(self, memo: _Memo, num_blocks: int) -> None:
        size = self.tokens_per_block
        while len(memo.digests) < num_blocks:
            block = len(memo.digests)
            parent = memo.digests[-1] if memo.digests else self._salt
            tokens = memo.tokens[block * size : (block + 1) * size].tobytes()
            memo.digests.append(hashlib.sha256(parent + tokens).digest())

    def _content(self, memo: _Memo, block: int) -> torch.Tensor:
        """``uint8[num_layers, kv_factor, elements]`` of one block."""
        data = hashlib.shake_128(memo.digests[block]).digest(self.page_bytes)
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return flat.view(self._num_layers, self._kv_factor, -1)

    def _page(self, pages: LayerPages, entry: ForwardEntry, block: int) -> int:
        # -1 is a valid subscript: the pool's last page, some other request's (contract §7).
        page = entry.tables[pages.group][block]
        if page < 0:
            raise PageMismatchError(f"block {block} of group {pages.group} has no page")
        return page

    def _mismatch(
        self, layer: int, block: int, page: int, part: Any, data: Any, entry: ForwardEntry
    ) -> None:
        """One part of a page does not hold ``data``."""
        raise PageMismatchError(
            f"page {page} does not hold block {block} of its request, layer {layer}"
        )

    def _verify(self, index: int, entry: ForwardEntry) -> None:
        size, num_blocks = self.tokens_per_block, entry.start // self.tokens_per_block
        pages, window = self._pages[index], self._windows[index]
        contents: dict[int, torch.Tensor] = entry.state
        first_seen = max(0, entry.start - window + 1) if window else 0
        for block in range(first_seen // size, num_blocks):
            if block not in contents:
                contents[block] = self._content(entry.memo, block)
            page = self._page(pages, entry, block)
            for part, data in zip(pages.parts, contents[block][index], strict=True):
                if not torch.equal(part[page], data):
                    self._mismatch(index, block, page, part, data, entry)
