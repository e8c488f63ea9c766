"""What the engine reports about saves: named, confirmed, finished (design rule 1).

A chunk is *named* ahead of the forward that completes it, and *confirmed* when a later report
counts it as computed, or its request finished well, and the engine's stream has passed that
point. What happens then is in ``saveflow``.

Must not know: sockets, the host's classes, threads. Runs in: the executor's thread, under the
saver's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from adapter.layersaves import LayerSaves
from adapter.metadata import ConnectorMetadata, LastWord, SaveNames
from adapter.saveentry import Mark, SaveEntry
from adapter.saveledger import SaveLedger


class SaveBook:
    """The engine's side of all saves of one rank."""

    def __init__(self, ledger: SaveLedger, layers: LayerSaves | None = None) -> None:
        """Writes into a ledger.

        Args:
            ledger: shared with the flow.
            layers: where chunks are staged layer by layer; None when they are not.
        """
        self._ledger = ledger
        self._layers = layers
        self._fresh: dict[int, SaveEntry] = {}

    def bound(self, metadata: ConnectorMetadata, mark: Mark | None) -> None:
        """Takes in one iteration's metadata.

        Args:
            metadata: as bound.
            mark: the last point recorded on the engine's stream, behind every forward launched
                so far; None when none was.

        Raises:
            IndexError: a page outside the pool.
        """
        ledger = self._ledger
        ledger.num_binds += 1
        for group, pages in enumerate(metadata.new_pages):
            ledger.ticks[group].raise_for(pages)
        for key in metadata.ended.tolist():
            self.ended(key)
        for names in metadata.names:
            self._name(names)
        find, bind = ledger.find, ledger.num_binds
        alive, valid_chunks = metadata.alive.tolist(), metadata.valid_chunks.tolist()
        next_tokens = metadata.next_tokens.tolist() or [0] * len(alive)
        reached = metadata.reached.tolist() or next_tokens
        for key, valid, at, last in zip(alive, valid_chunks, next_tokens, reached, strict=True):
            entry = find(key)
            if entry is not None:
                entry.seen_alive(bind, at, ledger.ticks, last)
                self._alive(entry, valid, mark)
        if self._layers is not None:
            self._layers.begin_forward(metadata.names if metadata.may_fire else ())

    def launched(self) -> None:
        """The forward of the last bind was launched well on this rank.

        What was named for a forward that was skipped is computed by the next one of its request.
        """
        bind = self._ledger.num_binds
        for key, entry in list(self._fresh.items()):
            if entry.alive_bind == bind:
                entry.launched = entry.named
            if entry.alive_bind == bind or self._ledger.find(key) is not entry:
                del self._fresh[key]

    def finished(self, request_ids: Iterable[int], mark: Mark | None, now_s: float) -> None:
        """The host announces finished requests whose pages it keeps for us.

        They were computed as far as ``hold`` was told, on other ranks than the leader's as far as
        was named for forwards that were launched; their pages stay theirs until we report them.

        Args:
            request_ids: the host's ids; each comes out of ``take_saved`` once.
            mark: the last point recorded on the engine's stream.
            now_s: monotonic clock, seconds.
        """
        ledger = self._ledger
        for request_id in request_ids:
            entry = ledger.find_request(request_id)
            if entry is None or entry.ended:
                ledger.report(request_id)
            elif entry.held_since_s is None:
                if ledger.is_follower:
                    entry.last_chunks = entry.launched
                entry.held_since_s = now_s
                self._vouch(entry, entry.last_chunks)
                entry.confirm(entry.last_chunks, mark)
                ledger.note(entry)

    def hold(
        self,
        key: int,
        request_id: int,
        num_pages: int,
        last: LastWord,
        has_peers: bool = False,
    ) -> bool:
        """Whether holding a finished request's pages would let saves succeed, and is allowed.

        What was named for a forward that then failed is not computed, although its request may be
        announced as finished: only ``last`` tells.

        Args:
            key: our number of the request.
            request_id: the host's id.
            num_pages: all pages of the request, over all layer groups.
            last: how far it was computed.
            has_peers: other ranks save shards of their own, and how far they are is not known
                here: each gives the pages back as soon as it may.
        """
        if last.names is not None:
            self._name(last.names)
        entry = self._ledger.find(key)
        if entry is None or entry.ended:
            return False
        if last.pages:
            entry.tell_pages(last.pages, self._ledger.ticks)
        is_wanted = has_peers and min(last.valid_chunks, entry.named) > entry.first_chunk
        if not (is_wanted or entry.is_outstanding(last.valid_chunks)):
            return False
        entry.last_chunks = last.valid_chunks
        return self._ledger.hold(request_id, num_pages)

    def abandon(self) -> None:
        """Withdraws everything: the engine's reports made no sense, or the engine ends."""
        for entry in self._ledger.entries():
            self._ledger.remove(entry)

    def _name(self, names: SaveNames) -> None:
        ledger = self._ledger
        if not ledger.groups:
            return
        entry = ledger.find(names.key)
        if entry is None:
            entry = ledger.open(names.request_id, names.key, names.first_chunk, names.parent)
            if entry is None:
                return
            entry.tenant = names.tenant
        if names.first_chunk != entry.named:
            ledger.count("saves_dropped_gap")
            return
        ticks = np.stack([of.of(row) for of, row in zip(ledger.ticks, names.pages, strict=True)])
        entry.add(names.keys, names.pages, ticks)
        if ledger.is_follower:
            self._fresh[entry.key] = entry

    def _alive(self, entry: SaveEntry, valid: int, mark: Mark | None) -> None:
        if self._ledger.is_follower:
            # The leader's word is of its own forwards. One that broke off here has no mark.
            valid = min(valid, entry.launched)
        if self._layers is not None:
            self._vouch(entry, valid)
        if valid > entry.confirmed:
            entry.confirm(valid, mark)
            self._ledger.note(entry)

    def _vouch(self, entry: SaveEntry, valid: int) -> None:
        """Chunks staged while their forward ran are good only as far as it really computed them.

        A forward may be trimmed after it was reported, or not be launched at all. What the first
        word after it does not count is dropped: it is copied again once it is confirmed.
        """
        for lane in entry.lanes:
            for run in list(lane.staged):
                if not run.vouch(valid):
                    lane.staged.remove(run)
                    self._ledger.drop_run(run)

    def ended(self, key: int) -> None:
        """A request's pages are no longer its own; nothing of it is published from now on.

        Args:
            key: our number of the request.
        """
        entry = self._ledger.find(key)
        if entry is None:
            return
        entry.ended = True
        if entry.is_idle:
            self._ledger.remove(entry)
