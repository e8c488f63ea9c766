"""The V2 manager: a request's pages grow chunk by chunk, and windows let go of theirs.

Must not know: streams, the connector, scheduling. Executor thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapter.conformance.host.cache import Tables
from adapter.conformance.host.requests import HostRequest
from adapter.conformance.host.v2.pages import NO_PAGE, PagePools, first_seen_block


class V2Cache:
    """Pages of all layer groups.

    Args:
        num_pages: Pages of each group.
        windows: Attention window of each group in tokens, 0 for full attention.
        tokens_per_block: Tokens of a page.

    Attributes:
        pools: The pages.
        tokens_per_block: Tokens of a page.
    """

    def __init__(
        self, num_pages: Sequence[int], windows: Sequence[int], tokens_per_block: int
    ) -> None:
        self.pools = PagePools(num_pages, windows, tokens_per_block)
        self.tokens_per_block = tokens_per_block
        self._handed_out: list[list[int]] = [[] for _ in windows]

    @property
    def num_groups(self) -> int:
        """Layer groups."""
        return len(self.pools.windows)

    @property
    def num_available(self) -> int:
        """Pages that could be handed out now, over all groups."""
        return sum(self.pools.num_available(group) for group in range(self.num_groups))

    @property
    def num_evicted(self) -> int:
        """Cached pages given up for others since start."""
        return self.pools.num_evicted

    def begin(self, request: HostRequest) -> int:
        """Give a request without pages those of its longest cached prefix.

        Returns:
            Tokens matched: whole blocks.
        """
        tokens = request.tokens[: request.context_len]
        request.tables = self.pools.match(request.params.reuse_scope(), tokens)
        return len(request.tables[0]) * self.tokens_per_block

    def grow(self, request: HostRequest, position: int, end: int) -> bool:
        """Give a request the pages that computing from ``position`` to ``end`` takes.

        Args:
            request: Has pages of what is before, as far as a window reaches.
            position: The first token to be computed.
            end: The token behind the last.

        Returns:
            Whether there were enough; if not, nothing has changed.
        """
        total = -(-end // self.tokens_per_block)
        grown: list[tuple[list[int], int, int]] = []
        for group, window in enumerate(self.pools.windows):
            table = request.tables[group]
            first = first_seen_block(window, position, self.tokens_per_block)
            begin = max(len(table), min(first, total))
            if total - begin > self.pools.num_available(group):
                return False
            grown.append((table, begin, max(0, total - begin)))
        self.slide(request, position)
        for group, (table, begin, count) in enumerate(grown):
            taken = self.pools.take(group, count)
            self._handed_out[group] += taken
            table += [NO_PAGE] * (begin - len(table)) + taken
        return True

    def slide(self, request: HostRequest, position: int) -> None:
        """Let go of the pages that no window reaches from ``position`` on; -1 takes their place."""
        for group, window in enumerate(self.pools.windows):
            table = request.tables[group]
            first = first_seen_block(window, position, self.tokens_per_block)
            # Pages go from the front only, so what is gone is found at once from behind.
            ordinal = min(first, len(table)) - 1
            while ordinal >= 0 and table[ordinal] != NO_PAGE:
                self._release_one(group, table[ordinal])
                table[ordinal] = NO_PAGE
                ordinal -= 1

    def handed_out(self) -> list[list[int]]:
        """Pages handed out since this was last asked, per group; those still held by someone.

        A page may have been handed out and given back within one plan, and then twice.
        """
        taken, self._handed_out = self._handed_out, [[] for _ in self.pools.windows]
        return [list(dict.fromkeys(pages)) for pages in taken]

    def hold(self, tables: Tables) -> None:
        """Take one more reference on each page; -1 is skipped."""
        self.pools.hold(tables)

    def release(self, tables: Tables) -> None:
        """Give up one reference on each page; -1 is skipped."""
        self.pools.release(tables)

    def borrow_page(self) -> Tables | None:
        """A page of each group for a dummy request, to be released; None if none fits."""
        groups = range(self.num_groups)
        if any(not self.pools.num_available(group) for group in groups):
            return None
        return [self.pools.take(group, 1) for group in groups]

    def store_computed(self, request: HostRequest) -> None:
        """Make the whole blocks before a request's cursor matchable."""
        self.pools.store(
            request.params.reuse_scope(), request.tokens[: request.cursor], request.tables
        )

    def store_finished(self, request: HostRequest) -> None:
        """Make all whole blocks of a finished request matchable; its last token was never fed."""
        self.pools.store(request.params.reuse_scope(), request.tokens[:-1], request.tables)

    def forget(self) -> int:
        """Give up every cached page that nobody holds, and say how many."""
        return self.pools.forget()

    def check_integrity(self) -> None:
        """Verify that each page is in exactly one state.

        Raises:
            HostError: If one is not.
        """
        self.pools.check_integrity()

    def _release_one(self, group: int, page: int) -> None:
        tables: list[list[int]] = [[] for _ in self.pools.windows]
        tables[group] = [page]
        self.pools.release(tables)
