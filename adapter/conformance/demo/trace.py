"""The trace excerpt that travels with the demo, and the prompts it stands for.

A trace holds ids of blocks, no tokens. Here each id becomes 512 token ids of its
own, the same ones wherever it stands, so equal ids mean equal tokens as in the
conversations the trace was taken from. Source and licence: ``data/SOURCE.md``.

Must not know: engines, the cache. Reads one packaged file; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Final

import numpy as np

FILE_NAME: Final = "conversation_trace_500.jsonl"
BLOCK_TOKENS: Final = 512
VOCAB_SIZE: Final = 32000
NUM_REQUESTS: Final = 500


@dataclass(frozen=True)
class TraceRequest:
    """One line of the trace.

    Attributes:
        num_tokens: Prompt length in tokens.
        block_ids: One id per block of ``BLOCK_TOKENS``, the last block possibly partial.
    """

    num_tokens: int
    block_ids: tuple[int, ...]

    def tokens(self) -> list[int]:
        """The prompt: ``num_tokens`` token ids below ``VOCAB_SIZE``."""
        tokens: list[int] = []
        for block_id in self.block_ids:
            tokens += _block_tokens(block_id)
        return tokens[: self.num_tokens]


def read_trace(num_requests: int = NUM_REQUESTS) -> list[TraceRequest]:
    """Read the first requests of the excerpt.

    Args:
        num_requests: 1 to ``NUM_REQUESTS``.

    Returns:
        That many, in order of arrival.

    Raises:
        ValueError: If the number is out of range or a line is not what it should be.
    """
    if not 1 <= num_requests <= NUM_REQUESTS:
        raise ValueError(f"num_requests is {num_requests}, valid are 1..{NUM_REQUESTS}")
    requests = [_request(line) for line, _ in zip(_lines(), range(num_requests), strict=False)]
    if len(requests) != num_requests:
        raise ValueError(f"{FILE_NAME} holds {len(requests)} requests, expected {num_requests}")
    return requests


def _lines() -> Iterator[str]:
    source = resources.files(__package__) / "data" / FILE_NAME
    with source.open(encoding="utf-8") as lines:
        yield from lines


def _request(line: str) -> TraceRequest:
    record = json.loads(line)
    request = TraceRequest(int(record["input_length"]), tuple(record["hash_ids"]))
    if len(request.block_ids) != -(-request.num_tokens // BLOCK_TOKENS):
        raise ValueError(f"{FILE_NAME}: {request.num_tokens} tokens in wrong number of blocks")
    return request


def _block_tokens(block_id: int) -> list[int]:
    # The id stands in the first two tokens, so no two ids have equal blocks.
    drawn = np.random.default_rng(block_id).integers(0, VOCAB_SIZE, BLOCK_TOKENS)
    drawn[0], drawn[1] = divmod(block_id, VOCAB_SIZE)
    tokens: list[int] = drawn.tolist()
    return tokens
