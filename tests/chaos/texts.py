"""Prompts that engines share: a few trunks, each with branches, each with a tail of its own.

Any engine's hits may come from another one's saves, in another incarnation. A small part of the
prompts is new from the first token on, so that stores and evictions never end. Must not know:
engines. A pure function of the random numbers it is given.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Final

VOCAB_SIZE: Final = 32_000


@dataclass(frozen=True)
class Library:
    """What prompts are made of.

    Attributes:
        block: tokens of a block.
        num_trunks: texts that prompts begin with.
        num_branches: continuations of each.
        trunk_blocks: length of a trunk, in blocks.
        branch_blocks: length of a branch.
        tail_blocks: longest tail, which no two prompts share.
        fresh: share of prompts that begin like no other.
    """

    block: int = 16
    num_trunks: int = 24
    num_branches: int = 6
    trunk_blocks: int = 4
    branch_blocks: int = 4
    tail_blocks: int = 1
    fresh: float = 0.06

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return (self.trunk_blocks + self.branch_blocks + self.tail_blocks) * self.block + 1

    @cached_property
    def _trunks(self) -> list[tuple[int, ...]]:
        return [
            _text(f"trunk {number}", self.trunk_blocks * self.block)
            for number in range(self.num_trunks)
        ]

    @cached_property
    def _branches(self) -> list[list[tuple[int, ...]]]:
        length = self.branch_blocks * self.block
        return [
            [_text(f"branch {number} {branch}", length) for branch in range(self.num_branches)]
            for number in range(self.num_trunks)
        ]

    def draw(self, rng: random.Random) -> tuple[int, ...]:
        """One prompt.

        Args:
            rng: decides.

        Returns:
            Token ids, at least one block and one token.
        """
        if rng.random() < self.fresh:
            return _random(rng, rng.randint(self.block, self.longest))
        trunk = rng.randrange(self.num_trunks)
        branch = self._branches[trunk][rng.randrange(self.num_branches)]
        # Ends everywhere, and often right at the border of a block.
        kept = rng.choice((len(branch), len(branch), rng.randint(0, len(branch))))
        tail = _random(rng, 1 + rng.choice((0, 0, rng.randint(0, self.tail_blocks * self.block))))
        return (*self._trunks[trunk], *branch[:kept], *tail)


def _random(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(1, VOCAB_SIZE) for _ in range(length))


def _text(name: str, length: int) -> tuple[int, ...]:
    return _random(random.Random(name), length)
