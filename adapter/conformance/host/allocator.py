"""Pages and who holds them: reference counts, a LIFO free list, eviction.

A page is in use (counted), idle (cached in the reuse tree, held by nobody) or
free. The page freed last is handed out first, so a reader that outlives its
right to a page soon reads another request's bytes, as on the real host.

Must not know: streams, the connector, what pages hold. Executor thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.reuse import ReuseTree


@dataclass(frozen=True)
class Allocation:
    """Pages for a prompt.

    Attributes:
        blocks: All pages in ordinal order, matched ones first.
        num_matched_tokens: Prompt tokens whose KV is there already.
        new_blocks: Pages handed out now.
        copy_from: A page whose beginning goes to the first new page, or None.
    """

    blocks: list[int]
    num_matched_tokens: int
    new_blocks: list[int]
    copy_from: int | None


class BlockAllocator:
    """Hands out pages of one pool.

    Args:
        num_blocks: Pages of the pool.
        tokens_per_block: Tokens a page holds.
        reuse: Whether pages stay cached after release.
        partial: Whether a match may end inside any page.
    """

    def __init__(
        self, num_blocks: int, tokens_per_block: int, *, reuse: bool, partial: bool
    ) -> None:
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        self.num_evicted = 0
        self._reuse = reuse
        self._tree = ReuseTree(tokens_per_block, partial=partial)
        self._refs = [0] * num_blocks
        self._free = list(reversed(range(num_blocks)))
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Pages that could be handed out now, cached idle ones included."""
        return len(self._free) + len(self._idle)

    def allocate(self, scope: tuple[object, ...], prompt: Sequence[int]) -> Allocation:
        """Match a prompt on the device and hand out the rest of its pages.

        Args:
            scope: Reuse scope of the request.
            prompt: Token ids.

        Returns:
            The pages; the caller holds one reference on each.

        Raises:
            HostError: If there are too few pages; the caller checks before.
        """
        total = -(-len(prompt) // self.tokens_per_block)
        match = self._tree.match(scope, prompt)
        full, tail, tail_tokens = match.full_blocks, match.tail_block, match.tail_tokens
        self.hold(full)
        if tail is not None:
            self.hold([tail])  # not to be evicted for the copy's own destination
            if self.num_available < total - len(full):
                self.release([tail])
                tail, tail_tokens = None, 0
        new_blocks = self.take(total - len(full))
        if tail is not None:
            self.release([tail])
        matched = len(full) * self.tokens_per_block + tail_tokens
        return Allocation([*full, *new_blocks], matched, new_blocks, tail)

    def take(self, num_blocks: int) -> list[int]:
        """Hand out pages, evicting idle ones when no free one is left.

        Args:
            num_blocks: Pages wanted.

        Returns:
            Page ids; the caller holds one reference on each.

        Raises:
            HostError: If there are too few.
        """
        if num_blocks > self.num_available:
            raise HostError(f"{num_blocks} pages wanted, {self.num_available} available")
        taken = []
        for _ in range(num_blocks):
            if not self._free:
                self._evict_one()
            block = self._free.pop()
            self._refs[block] = 1
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference on each page, the last page first."""
        for block in reversed(blocks):
            if self._refs[block] <= 0:
                raise HostError(f"page {block} released more often than held")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if block in self._tree:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def hold(self, blocks: Sequence[int]) -> None:
        """Take one more reference on each page."""
        for block in blocks:
            self._refs[block] += 1
            self._idle.pop(block, None)

    def store(
        self, scope: tuple[object, ...], tokens: Sequence[int], blocks: Sequence[int]
    ) -> None:
        """Make held pages matchable; no-op with reuse off."""
        if self._reuse:
            self._tree.store(scope, tokens, blocks)

    def forget(self) -> int:
        """Give up every cached page that nobody holds.

        Returns:
            How many pages there were.
        """
        num_pages = len(self._idle)
        while self._idle:
            self._evict_one()
        return num_pages

    def num_references(self, block: int) -> int:
        """How many holders a page has."""
        return self._refs[block]

    def check_integrity(self) -> None:
        """Verify that each page is in exactly one state.

        Raises:
            HostError: If one is not.
        """
        free, idle = set(self._free), set(self._idle)
        used = {block for block, refs in enumerate(self._refs) if refs > 0}
        if len(free) != len(self._free) or free & idle or free & used or idle & used:
            raise HostError("a page is in two states at once")
        if free | idle | used != set(range(self.num_blocks)):
            raise HostError("a page is in no state")
        if any(block not in self._tree for block in idle) or any(b in self._tree for b in free):
            raise HostError("the reuse tree disagrees with the page states")

    def _evict_one(self) -> None:
        # Oldest leaf; a subtree goes only if everything idle has pages in use below.
        victim = next((b for b in self._idle if self._tree.is_leaf(b)), next(iter(self._idle)))
        for block in self._tree.remove(victim):
            if block in self._idle:
                del self._idle[block]
                self._free.append(block)
                self.num_evicted += 1
