"""What a perfect cache would hit: the yardstick for the hits that engines report.

Written from the definition and for nothing else: it shares no code with the
connector or the host, keeps whole prefixes instead of hashes, and counts blocks
the way anyone would by hand.

Must not know: engines, the connector. Pure, any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class PerfectCache:
    """Everything ever computed, unlimited, for one model and one reuse scope.

    Args:
        tokens_per_block: Tokens of a block.
    """

    def __init__(self, tokens_per_block: int) -> None:
        self._size = tokens_per_block
        self._prefixes: set[bytes] = set()

    def add(self, tokens: Sequence[int]) -> None:
        """A request ended; the KV of its last token was never computed.

        Args:
            tokens: Prompt and generated token ids, at least one generated.
        """
        for end in range(self._size, len(tokens), self._size):
            self._prefixes.add(_fixed_width(tokens[:end]))

    def hit_tokens(self, prompt: Sequence[int]) -> int:
        """Tokens of a prompt that need not be computed, the last one excluded.

        Args:
            prompt: Token ids.

        Returns:
            A multiple of the block size, below ``len(prompt)``.
        """
        hit = 0
        for end in range(self._size, len(prompt), self._size):
            if _fixed_width(prompt[:end]) not in self._prefixes:
                break
            hit = end
        return hit


def trace_blocks(records: Sequence[tuple[int, Sequence[int]]], block: int) -> tuple[int, int]:
    """Full blocks that an unlimited cache hits in a trace, and all full blocks.

    A hit is a leading block that an earlier request brought along as a full one;
    the block of a prompt's last token never counts.

    Args:
        records: Prompt length in tokens and ids of its blocks, per request.
        block: Tokens of a block.

    Returns:
        Blocks hit, blocks in all.
    """
    seen: set[int] = set()
    num_hits = num_blocks = 0
    for length, ids in records:
        leading = ids[: (length - 1) // block]
        num_hits += next((i for i, name in enumerate(leading) if name not in seen), len(leading))
        num_blocks += length // block
        seen.update(ids[: length // block])
    return num_hits, num_blocks


def _fixed_width(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()
