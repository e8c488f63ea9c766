"""The pages of each layer group: who holds them, and which token prefixes they stand for.

A page is in use (counted), idle (cached, held by nobody) or free; page ids are a group's own.
The page freed last is handed out first, the highest id first of all: -1 as a subscript is that
page. A prefix is matched only as far as every group has the pages that a forward behind it
would read: all of them, or those that a sliding window reaches.

Must not know: requests, streams, the connector. Executor thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from adapter.conformance.host.errors import HostError

NO_PAGE: Final = -1


def first_seen_block(window: int, position: int, tokens_per_block: int) -> int:
    """The first block that a token reads.

    Args:
        window: Tokens it sees, itself included; 0 for all.
        position: Of the token.
        tokens_per_block: Tokens of a block.
    """
    return max(0, position - window + 1) // tokens_per_block if window else 0


@dataclass(eq=False)
class _Node:
    """One block of a prefix; its pages by group, NO_PAGE where there is none."""

    key: tuple[int, ...]
    parent: _Node | None
    pages: list[int]
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


class _Group:
    """Counts, free list and idle pages of one group."""

    def __init__(self, num_pages: int) -> None:
        self.refs = [0] * num_pages
        self.free = list(range(num_pages))
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.nodes: dict[int, _Node] = {}

    @property
    def num_available(self) -> int:
        return len(self.free) + len(self.idle)

    def hold(self, page: int) -> None:
        self.refs[page] += 1
        self.idle.pop(page, None)

    def release(self, page: int) -> None:
        if self.refs[page] <= 0:
            raise HostError(f"page {page} released more often than held")
        self.refs[page] -= 1
        if self.refs[page] == 0:
            if page in self.nodes:
                self.idle[page] = None
            else:
                self.free.append(page)


class PagePools:
    """All groups' pages and the prefixes they stand for.

    Args:
        num_pages: Pages of each group.
        windows: Attention window of each group in tokens, 0 for full attention.
        tokens_per_block: Tokens of a page.

    Attributes:
        num_evicted: Cached pages given up for others.
    """

    def __init__(
        self, num_pages: Sequence[int], windows: Sequence[int], tokens_per_block: int
    ) -> None:
        self.windows = tuple(windows)
        self.num_evicted = 0
        self._size = tokens_per_block
        self._groups = [_Group(count) for count in num_pages]
        self._roots: dict[tuple[object, ...], _Node] = {}

    def num_available(self, group: int) -> int:
        """Pages of a group that could be handed out now, cached idle ones included."""
        return self._groups[group].num_available

    def match(self, scope: tuple[object, ...], tokens: Sequence[int]) -> list[list[int]]:
        """Find and hold the longest cached prefix of whole blocks, the last token excluded.

        Args:
            scope: Reuse scope of the request.
            tokens: Token ids.

        Returns:
            One table per group, all equally long, NO_PAGE where no page is needed.
        """
        path: list[_Node] = []
        node, size = self._roots.get(scope), self._size
        while node is not None and (len(path) + 1) * size <= len(tokens) - 1:
            begin = len(path) * size
            node = node.children.get(tuple(tokens[begin : begin + size]))
            if node is not None:
                path.append(node)
        for length in range(len(path), -1, -1):
            first = [first_seen_block(w, length * size, size) for w in self.windows]
            tables = [
                [NO_PAGE] * begin + [n.pages[group] for n in path[begin:length]]
                for group, begin in enumerate(first)
            ]
            if all(NO_PAGE not in t[begin:] for t, begin in zip(tables, first, strict=True)):
                self.hold(tables)
                return tables
        raise AssertionError("an empty prefix always matches")

    def take(self, group: int, num_pages: int) -> list[int]:
        """Hand out pages, evicting idle ones when no free one is left.

        Raises:
            HostError: If there are too few; the caller checks before.
        """
        pool, taken = self._groups[group], []
        if num_pages > pool.num_available:
            raise HostError(f"{num_pages} pages wanted, {pool.num_available} available")
        for _ in range(num_pages):
            if not pool.free:
                self._evict_one(group)
            page = pool.free.pop()
            pool.refs[page] = 1
            taken.append(page)
        return taken

    def hold(self, tables: Sequence[Sequence[int]]) -> None:
        """Take one more reference on each page of each group; NO_PAGE is skipped."""
        for group, table in zip(self._groups, tables, strict=False):
            for page in table:
                if page != NO_PAGE:
                    group.hold(page)

    def release(self, tables: Sequence[Sequence[int]]) -> None:
        """Give up one reference on each, the last page of each group first."""
        for group, table in zip(self._groups, tables, strict=False):
            for page in reversed(table):
                if page != NO_PAGE:
                    group.release(page)

    def store(
        self,
        scope: tuple[object, ...],
        tokens: Sequence[int],
        tables: Sequence[Sequence[int]],
    ) -> None:
        """Enter held pages under their tokens; a block that has a page keeps it.

        Args:
            scope: Reuse scope of the request.
            tokens: Computed tokens from the prompt's beginning; a last part of a block is left.
            tables: The request's pages.
        """
        node = self._roots.setdefault(scope, _Node((), None, []))
        for ordinal in range(len(tokens) // self._size):
            key = tuple(tokens[ordinal * self._size : (ordinal + 1) * self._size])
            pages = [table[ordinal] for table in tables]
            child = node.children.get(key)
            if child is None:
                if any(page in g.nodes for page, g in zip(pages, self._groups, strict=True)):
                    return  # the page stands elsewhere
                child = node.children[key] = _Node(key, node, [NO_PAGE] * len(pages))
            for index, (page, group) in enumerate(zip(pages, self._groups, strict=True)):
                if page != NO_PAGE and child.pages[index] == NO_PAGE and page not in group.nodes:
                    child.pages[index] = page
                    group.nodes[page] = child
            node = child

    def forget(self) -> int:
        """Give up every cached page that nobody holds, and say how many."""
        before = sum(len(group.idle) for group in self._groups)
        for index, group in enumerate(self._groups):
            while group.idle:
                self._evict_one(index)
        return before

    def check_integrity(self) -> None:
        """Verify that each page is in exactly one state and the prefixes agree.

        Raises:
            HostError: If not.
        """
        for index, group in enumerate(self._groups):
            free, idle = set(group.free), set(group.idle)
            used = {page for page, refs in enumerate(group.refs) if refs > 0}
            if len(free) != len(group.free) or free & idle or free & used or idle & used:
                raise HostError("a page is in two states at once")
            if free | idle | used != set(range(len(group.refs))):
                raise HostError("a page is in no state")
            if idle - set(group.nodes) or free & set(group.nodes):
                raise HostError("the prefixes disagree with the page states")
            if any(node.pages[index] != page for page, node in group.nodes.items()):
                raise HostError("a page stands for a block that does not know it")

    def _evict_one(self, index: int) -> None:
        # Oldest first, but a block before another's only if nothing else is left.
        group = self._groups[index]
        leaf = next((p for p in group.idle if not group.nodes[p].children), None)
        page = next(iter(group.idle)) if leaf is None else leaf
        node = group.nodes[page]
        self._leave(node, index)
        if not self.windows[index]:
            self._remove(node)  # without this page nothing behind it can be matched
        while node.parent is not None and not node.children and set(node.pages) == {NO_PAGE}:
            node.parent.children.pop(node.key, None)
            node = node.parent

    def _remove(self, node: _Node) -> None:
        pending = [node]
        while pending:
            current = pending.pop()
            for index in range(len(self._groups)):
                self._leave(current, index)
            pending.extend(current.children.values())
            current.children = {}

    def _leave(self, node: _Node, index: int) -> None:
        page, group = node.pages[index], self._groups[index]
        if page == NO_PAGE:
            return
        node.pages[index] = NO_PAGE
        del group.nodes[page]
        if page in group.idle:
            del group.idle[page]
            group.free.append(page)
            self.num_evicted += 1
