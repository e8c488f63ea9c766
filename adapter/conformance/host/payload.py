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
from typing import Any, Final

import torch

from adapter.conformance.host.errors import PageMismatchError
from adapter.conformance.host.forward import ForwardEntry, PoolShape

_KV_FACTOR: Final = 2


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
    ) -> None:
        self.tokens_per_block = tokens_per_block
        self.num_verified_pages = 0
        self._bytes_per_token = bytes_per_token
        self._num_layers = num_layers
        self._vocab_size = vocab_size
        self._max_seq_len = max_seq_len
        self._salt = salt
        self._pages = torch.empty(0, dtype=torch.uint8)

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
        return self._num_layers * _KV_FACTOR * self.tokens_per_block * self._bytes_per_token

    def pool_shape(self, num_blocks: int) -> PoolShape:
        """Shape of the pool: bytes."""
        elements = self.tokens_per_block * self._bytes_per_token
        return PoolShape((num_blocks, self._num_layers, _KV_FACTOR, elements), "uint8")

    def bind_pool(self, pool: Any) -> None:
        """Use ``pool`` (as ``pool_shape`` says) from now on."""
        self._pages = pool.view(pool.shape[0], -1)

    def new_memo(self, prompt: Sequence[int]) -> _Memo:
        """Begin a chain; nothing is hashed before the first forward."""
        return _Memo(array("i", prompt))

    def begin(self, entries: Sequence[ForwardEntry]) -> None:
        """Append fed tokens and, at a request's first forward, check its prefix.

        Raises:
            PageMismatchError: If a page before ``start`` holds other bytes.
        """
        for entry in entries:
            memo: _Memo = entry.memo
            tokens = entry.token_ids()
            if entry.start >= len(memo.tokens):
                memo.tokens.extend(tokens)
            self._extend(memo, (entry.start + entry.num_tokens) // self.tokens_per_block)
            if entry.first:
                self._verify(entry, memo)

    def layer(self, index: int, entries: Sequence[ForwardEntry]) -> None:
        """Fill this layer's share of each page completed by the forward."""
        share = self.page_bytes // self._num_layers
        part = slice(index * share, (index + 1) * share)
        for entry in entries:
            first = entry.start // self.tokens_per_block
            last = (entry.start + entry.num_tokens) // self.tokens_per_block
            for block in range(first, last):
                self._pages[entry.block_ids[block], part] = self._content(entry.memo, block)[part]

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
        return bytes(self._content(memo, num_blocks - 1).tolist())

    def _extend(self, memo: _Memo, num_blocks: int) -> None:
        size = self.tokens_per_block
        while len(memo.digests) < num_blocks:
            block = len(memo.digests)
            parent = memo.digests[-1] if memo.digests else self._salt
            tokens = memo.tokens[block * size : (block + 1) * size].tobytes()
            memo.digests.append(hashlib.sha256(parent + tokens).digest())

    def _content(self, memo: _Memo, block: int) -> torch.Tensor:
        data = hashlib.shake_128(memo.digests[block]).digest(self.page_bytes)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def _verify(self, entry: ForwardEntry, memo: _Memo) -> None:
        for block in range(entry.start // self.tokens_per_block):
            page = self._pages[entry.block_ids[block]]
            if not torch.equal(page, self._content(memo, block)):
                raise PageMismatchError(
                    f"page {entry.block_ids[block]} does not hold block {block} of its request"
                )
            self.num_verified_pages += 1
