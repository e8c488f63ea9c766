"""Which saves are open, which pages are held for them, and which ids are to be reported.

The common ground of the two sides of a save: ``savebook`` (what the engine reports) and
``saveflow`` (what the server is asked). Must not know: sockets, the host's classes, threads. All
access is under the saver's lock.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from adapter.geometry import Geometry
from adapter.ring import StagingRing
from adapter.saveentry import SaveEntry
from adapter.savelane import Reach, SaveLane
from adapter.stagedrun import StagedRun
from adapter.ticks import PageTicks
from protocol import limits

HOLD_S: Final = 30.0
"""Longest time pages of a finished request are held for its saves."""

MIN_HELD_PAGES: Final = 16
"""The cap on held pages is never below this, so that small pools can save at all."""


class SaveLedger:
    """All open saves of one rank.

    Attributes:
        ticks: for each layer group, when each page was last handed out; groups whose pages are
            from one pool have the same.
        groups: layer groups that this rank saves.
        chunk_blocks: pages per chunk.
        is_follower: the leader decides what is held; nothing is refused here.
        ring: where pages go before they are sent; None when the server reads the pool itself.
        max_held_pages: most pages that finished requests may hold.
        num_binds: iterations bound so far.
        counts: what happened, by name.
    """

    def __init__(
        self, geometry: Geometry, held_percent: int, ring: StagingRing | None = None
    ) -> None:
        """Starts empty.

        Args:
            geometry: of this rank's pages.
            held_percent: share of the pool that finished requests may hold; 0 holds none.
            ring: where pages are staged; None when the server reads the pool itself.
        """
        pools: dict[int, PageTicks] = {}
        self.ticks = tuple(
            pools.setdefault(pool, PageTicks(group.num_pages))
            for pool, group in zip(
                geometry.pools or range(geometry.num_groups), geometry.groups, strict=True
            )
        )
        self.groups = saved_groups(geometry)
        self.chunk_blocks = geometry.chunk_blocks
        self.is_follower = geometry.rank > 0
        self.ring = ring
        share = sum(ticks.num_pages for ticks in pools.values()) * held_percent // 100
        self.max_held_pages = max(MIN_HELD_PAGES, share) if held_percent else 0
        self.num_binds = 0
        self.counts: dict[str, int] = {}
        self._reach = [
            Reach(group.window_tokens, geometry.tokens_per_block, geometry.chunk_blocks)
            if group.window_tokens
            else None
            for group in geometry.groups
        ]
        self._entries: dict[int, SaveEntry] = {}
        self._by_request: dict[int, int] = {}
        self._busy: dict[int, None] = {}
        self._held: dict[int, int] = {}
        self._saved: deque[int] = deque()

    @property
    def num_entries(self) -> int:
        """Requests with saves in the book."""
        return len(self._entries)

    @property
    def num_held_pages(self) -> int:
        """Pages of finished requests that wait for their saves."""
        return sum(self._held.values())

    @property
    def has_work(self) -> bool:
        """Whether something is confirmed, copying or unsettled."""
        return bool(self._busy)

    def busy(self) -> list[SaveEntry]:
        """Entries with something confirmed, copying or unsettled."""
        return [self._entries[key] for key in self._busy]

    def entries(self) -> list[SaveEntry]:
        """All entries."""
        return list(self._entries.values())

    def find(self, key: int) -> SaveEntry | None:
        """The entry of a request, by our number."""
        return self._entries.get(key)

    def find_request(self, request_id: int) -> SaveEntry | None:
        """The entry of a request, by the host's id."""
        return self._entries.get(self._by_request.get(request_id, 0))

    def open(self, request_id: int, key: int, first_chunk: int, parent: bytes) -> SaveEntry | None:
        """Begins the saves of a request.

        Args:
            request_id: the host's id.
            key: our number.
            first_chunk: ordinal from which chunks are named.
            parent: key of the chunk before it, or empty.

        Returns:
            The entry, or None when there are too many.
        """
        if len(self._entries) >= limits.MAX_LIVE_REQUESTS:
            self.count("saves_dropped_crowded")
            return None
        lanes = [SaveLane(group, first_chunk, self._reach[group]) for group in self.groups]
        entry = SaveEntry(request_id, key, first_chunk, parent, lanes, self.chunk_blocks)
        self._entries[key] = entry
        self._by_request[request_id] = key
        return entry

    def hold(self, request_id: int, num_pages: int) -> bool:
        """Asks to keep a finished request's pages until its saves are settled.

        Args:
            request_id: the host's id.
            num_pages: all pages of the request.

        Returns:
            False when the cap is reached; its saves are withdrawn then.
        """
        if self.num_held_pages + num_pages > self.max_held_pages:
            self.count("saves_dropped_held_cap")
            return False
        self._held[request_id] = num_pages
        return True

    def report(self, request_id: int) -> None:
        """The host may have the pages of a request back."""
        self._held.pop(request_id, None)
        self._saved.append(request_id)

    def take_saved(self) -> list[int]:
        """Ids reported since the last call; each once."""
        saved = list(self._saved)
        self._saved.clear()
        return saved

    def note(self, entry: SaveEntry) -> None:
        """Looks again whether an entry has something to do."""
        if not entry.is_idle or entry.has_ahead:
            self._busy[entry.key] = None
        elif entry.held_since_s is not None:
            self.remove(entry)

    def tidy(self, entry: SaveEntry, now_s: float) -> None:
        """Removes what has nothing left to do.

        Args:
            entry: whose STORE was just settled, or dropped.
            now_s: monotonic clock, seconds.
        """
        if not entry.is_idle:
            return
        if entry.ended or self.is_overdue(entry, now_s):
            self.remove(entry)
        elif not entry.has_ahead:
            if entry.held_since_s is not None:
                self.remove(entry)
            else:
                self._busy.pop(entry.key, None)

    def is_overdue(self, entry: SaveEntry, now_s: float) -> bool:
        """Whether pages were held for an entry as long as may be."""
        return entry.held_since_s is not None and now_s - entry.held_since_s > HOLD_S

    def remove(self, entry: SaveEntry) -> None:
        """Forgets an entry; if pages were held for it, the host gets them back."""
        self._entries.pop(entry.key, None)
        self._busy.pop(entry.key, None)
        for lane in entry.lanes:
            self.drop_staged(lane)
        if self._by_request.get(entry.request_id) == entry.key:
            del self._by_request[entry.request_id]
        if entry.held_since_s is not None:
            self.report(entry.request_id)

    def drop_staged(self, lane: SaveLane, before_chunk: int | None = None) -> None:
        """Gives up chunks that were staged ahead of their STORE.

        Args:
            lane: whose.
            before_chunk: only runs that lie before this chunk; None for all.
        """
        for run in list(lane.staged):
            if before_chunk is None or run.stop_chunk <= before_chunk:
                lane.staged.remove(run)
                self.drop_run(run)

    def drop_run(self, run: StagedRun) -> None:
        """Nobody will use a run; its slots go back once nothing is written into them."""
        run.is_dropped = True
        if self.ring is not None and not run.is_copying:
            self.ring.give_back(run.lot)

    def count(self, name: str, amount: int = 1) -> None:
        """Counts an event.

        Args:
            name: of the counter.
            amount: how many.
        """
        self.counts[name] = self.counts.get(name, 0) + amount


def saved_groups(geometry: Geometry) -> tuple[int, ...]:
    """The layer groups whose shards this rank stores.

    Replicated groups hold the same bytes on every rank and have one shard, which the leader
    stores; it is known by its number, for shards are numbered group by group, ranks ascending.

    Args:
        geometry: of this rank.
    """
    if geometry.rank == 0:
        return tuple(range(geometry.num_groups))
    found, base = [], 0
    for group, shard in enumerate(geometry.shards):
        is_replicated = shard == base
        base += 1 if is_replicated else geometry.num_ranks
        if not is_replicated:
            found.append(group)
    return tuple(found)
