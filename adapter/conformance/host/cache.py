"""What the executor's parts need of a KV cache manager, and V1's.

A request's pages are its ``tables``: one list of page ids per layer group, in ordinal
order, -1 where the group has no page. V1 has one group.

Must not know: streams, the connector, what pages hold. Executor thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from adapter.conformance.host.allocator import BlockAllocator
from adapter.conformance.host.requests import HostRequest

Tables = Sequence[Sequence[int]]


class CacheManager(Protocol):
    """Pages of all layer groups and who holds them."""

    @property
    def tokens_per_block(self) -> int:
        """Tokens a page holds."""

    @property
    def num_groups(self) -> int:
        """Layer groups."""

    @property
    def num_available(self) -> int:
        """Pages that could be handed out now, over all groups, cached idle ones included."""

    @property
    def num_evicted(self) -> int:
        """Cached pages given up for others since start."""

    def hold(self, tables: Tables) -> None:
        """Take one more reference on each page; -1 is skipped."""

    def release(self, tables: Tables) -> None:
        """Give up one reference on each page; -1 is skipped."""

    def borrow_page(self) -> Tables | None:
        """A page of each group for a dummy request, to be released; None if none fits."""

    def store_computed(self, request: HostRequest) -> None:
        """Note that the request's prompt is computed up to its cursor."""

    def store_finished(self, request: HostRequest) -> None:
        """Make all that a finished request computed matchable: all tokens but the last."""

    def forget(self) -> int:
        """Give up every cached page that nobody holds, and say how many."""


class V1Cache:
    """The V1 manager: one pool for all layers.

    Args:
        allocator: Its pages.
    """

    num_groups = 1

    def __init__(self, allocator: BlockAllocator) -> None:
        self.allocator = allocator

    @property
    def tokens_per_block(self) -> int:
        """Tokens a page holds."""
        return self.allocator.tokens_per_block

    @property
    def num_available(self) -> int:
        """Pages that could be handed out now."""
        return self.allocator.num_available

    @property
    def num_evicted(self) -> int:
        """Cached pages given up for others since start."""
        return self.allocator.num_evicted

    def hold(self, tables: Tables) -> None:
        """Take one more reference on each page."""
        for table in tables:
            self.allocator.hold(table)

    def release(self, tables: Tables) -> None:
        """Give up one reference on each page."""
        for table in tables:
            self.allocator.release(table)

    def borrow_page(self) -> Tables | None:
        """A page for a dummy request; None if none fits."""
        return [self.allocator.take(1)] if self.allocator.num_available else None

    def store_computed(self, request: HostRequest) -> None:
        """Make a prompt's full pages matchable once all of it is computed."""
        if request.cursor < request.context_len:
            return
        full = request.context_len - request.context_len % self.tokens_per_block
        scope = request.params.reuse_scope()
        self.allocator.store(scope, request.tokens[:full], request.blocks)

    def store_finished(self, request: HostRequest) -> None:
        """Make a finished request's pages matchable; its last token was never fed."""
        scope = request.params.reuse_scope()
        self.allocator.store(scope, request.tokens[:-1], request.blocks)

    def forget(self) -> int:
        """Give up every cached page that nobody holds, and say how many."""
        return self.allocator.forget()
