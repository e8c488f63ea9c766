"""The host's own reuse tree: which pages hold which token prefixes.

A node is one page; its key is the tokens it holds, its path the prefix before
it. Full pages have children; a page with fewer tokens is a leaf. One root per
reuse scope. Matching follows the V1 manager: the last prompt token is never
matched, and a match may end inside a page (host contract §3, §6).

Must not know: reference counts, streams, the connector. Executor thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Node:
    key: tuple[int, ...]
    block_id: int
    parent: _Node | None
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """What of a prompt is on the device.

    Attributes:
        full_blocks: Pages wholly matched, in ordinal order.
        tail_block: A page whose first ``tail_tokens`` tokens match too, or None.
        tail_tokens: Tokens matched in ``tail_block``.
    """

    full_blocks: list[int]
    tail_block: int | None
    tail_tokens: int


class ReuseTree:
    """Prefix tree over pages.

    Args:
        tokens_per_block: Tokens a full page holds.
        partial: Whether any common beginning of a page matches; without it only an
            identical stored tail page does.
    """

    def __init__(self, tokens_per_block: int, *, partial: bool) -> None:
        self._size = tokens_per_block
        self._partial = partial
        self._roots: dict[tuple[object, ...], _Node] = {}
        self._by_block: dict[int, _Node] = {}

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._by_block

    def __len__(self) -> int:
        return len(self._by_block)

    def match(self, scope: tuple[object, ...], prompt: Sequence[int]) -> Match:
        """Find the longest stored prefix of a prompt, its last token excluded.

        Args:
            scope: Reuse scope of the request.
            prompt: Token ids.

        Returns:
            Full pages, and possibly a page that matches in part.
        """
        node = self._roots.get(scope)
        if node is None:
            return Match([], None, 0)
        usable = len(prompt) - 1
        blocks: list[int] = []
        while (len(blocks) + 1) * self._size <= usable:
            begin = len(blocks) * self._size
            child = node.children.get(tuple(prompt[begin : begin + self._size]))
            if child is None:
                break
            node = child
            blocks.append(child.block_id)
        begin = len(blocks) * self._size
        segment = tuple(prompt[begin : min(usable, begin + self._size)])
        tail, num_tokens = self._match_tail(node, segment)
        return Match(blocks, tail, num_tokens)

    def store(
        self, scope: tuple[object, ...], tokens: Sequence[int], block_ids: Sequence[int]
    ) -> None:
        """Enter pages under their tokens; a prefix that has a page keeps that page.

        Args:
            scope: Reuse scope of the request.
            tokens: Token ids whose KV the pages hold, from the prompt's beginning.
            block_ids: Pages in ordinal order; the last may be partly filled.
        """
        node = self._roots.setdefault(scope, _Node((), -1, None))
        for ordinal, begin in enumerate(range(0, len(tokens), self._size)):
            key = tuple(tokens[begin : begin + self._size])
            child = node.children.get(key)
            if child is None:
                if block_ids[ordinal] in self._by_block:
                    return  # the page stands elsewhere, e.g. as the tail it grew from
                child = _Node(key, block_ids[ordinal], node)
                node.children[key] = child
                self._by_block[child.block_id] = child
            if len(key) < self._size:
                return
            node = child

    def remove(self, block_id: int) -> list[int]:
        """Take a page and everything below it out of the tree.

        Args:
            block_id: A page in the tree.

        Returns:
            The pages removed, ``block_id`` first.
        """
        node = self._by_block[block_id]
        if node.parent is not None:
            del node.parent.children[node.key]
        removed, pending = [], [node]
        while pending:
            current = pending.pop()
            removed.append(current.block_id)
            del self._by_block[current.block_id]
            pending.extend(current.children.values())
        return removed

    def is_leaf(self, block_id: int) -> bool:
        """Whether no page stands below this one."""
        return not self._by_block[block_id].children

    def _match_tail(self, node: _Node, segment: tuple[int, ...]) -> tuple[int | None, int]:
        if not segment:
            return None, 0
        if not self._partial:
            child = node.children.get(segment) if len(segment) < self._size else None
            return (None, 0) if child is None else (child.block_id, len(segment))
        best, best_tokens = None, 0
        for key, child in node.children.items():
            common = _common_prefix(key, segment)
            if common > best_tokens:
                best, best_tokens = child.block_id, common
        return best, best_tokens


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for a, b in zip(left, right):  # noqa: B905 - of unequal length on purpose
        if a != b:
            break
        count += 1
    return count
