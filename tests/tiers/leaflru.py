"""How many blocks a cache of N blocks hits that evicts leaves by age: an independent count.

A dict and a heap, written from the rule alone: a block is held only while its parent is; a request
touches all blocks of its prompt; when there is no room, the leaf that was touched longest ago goes.
Must not know: the server. Plain arithmetic.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence

Block = Hashable


class LeafLru:
    """A cache of blocks, each named by everything up to its end.

    Args:
        num_blocks: that it holds.
    """

    def __init__(self, num_blocks: int) -> None:
        self._room = num_blocks
        self._used: dict[Block, tuple[int, int]] = {}
        self._parent: dict[Block, Block | None] = {}
        self._children: dict[Block, int] = {}
        self._leaves: list[tuple[tuple[int, int], Block]] = []
        self._now = 0

    def ask(self, prompt: Sequence[Block], usable: int) -> int:
        """One request: counts what is held of it, then holds all of it.

        Args:
            prompt: its blocks, from the first on.
            usable: leading ones that a hit may cover.

        Returns:
            Blocks hit.
        """
        self._now += 1
        held = next((at for at, one in enumerate(prompt) if one not in self._used), len(prompt))
        for at, block in enumerate(prompt[:held]):
            self._touch(block, at)
        for at in range(held, len(prompt)):
            if not self._make_room():
                break
            parent = prompt[at - 1] if at else None
            self._parent[prompt[at]] = parent
            self._children[prompt[at]] = 0
            if parent is not None:
                self._children[parent] += 1
            self._touch(prompt[at], at)
        return min(held, usable)

    def _touch(self, block: Block, depth: int) -> None:
        self._used[block] = (self._now, -depth)
        heapq.heappush(self._leaves, (self._used[block], block))

    def _make_room(self) -> bool:
        """Whether there is room for one block; nothing of the present request goes."""
        while len(self._used) >= self._room:
            if not self._leaves:
                return False
            used, block = heapq.heappop(self._leaves)
            if self._used.get(block) != used or self._children[block]:
                continue  # touched since, or not a leaf: pushed again when it becomes one
            if used[0] == self._now:
                heapq.heappush(self._leaves, (used, block))
                return False
            del self._used[block], self._children[block]
            parent = self._parent.pop(block)
            if parent is not None:
                self._children[parent] -= 1
                if not self._children[parent]:
                    heapq.heappush(self._leaves, (self._used[parent], parent))
        return True


def hits(requests: Iterable[tuple[Sequence[Block], int]], num_blocks: int) -> list[int]:
    """Blocks that each request hits.

    Args:
        requests: blocks of each prompt, and how many leading ones a hit may cover.
        num_blocks: that the cache holds.
    """
    cache = LeafLru(num_blocks)
    return [cache.ask(prompt, usable) for prompt, usable in requests]
