"""What the engine reports about saves: named, confirmed, finished (design rule 1).

A chunk is *named* ahead of the forward that completes it, and *confirmed* when a later report
counts it as computed, or its request finished well, and the engine's stream has passed that
point. What happens then is in ``saveflow``.

Must not know: sockets, the host's classes, threads. Runs in: the executor's thread, under the
saver's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from adapter.metadata import ConnectorMetadata, LastWord, SaveNames
from adapter.saveentry import Mark, Stage
from adapter.saveledger import SaveLedger


class SaveBook:
    """The engine's side of all saves of one rank."""

    def __init__(self, ledger: SaveLedger) -> None:
        """Writes into a ledger.

        Args:
            ledger: shared with the flow.
        """
        self._ledger = ledger

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
        ledger.ticks.raise_for(metadata.new_pages)
        for key in metadata.ended.tolist():
            self._end(key)
        for names in metadata.names:
            self._name(names)
        for key, valid in zip(metadata.alive.tolist(), metadata.valid_chunks.tolist(), strict=True):
            entry = ledger.find(key)
            if entry is not None:
                entry.alive_bind = ledger.num_binds
                if valid > entry.confirmed:
                    entry.confirm(valid, mark)
                    ledger.note(entry)

    def finished(self, request_ids: Iterable[int], mark: Mark | None, now_s: float) -> None:
        """The host announces finished requests whose pages it keeps for us.

        They were computed as far as ``hold`` was told, and their pages stay theirs until we report
        them.

        Args:
            request_ids: the host's ids; each comes out of ``take_saved`` once.
            mark: the last point recorded on the engine's stream.
            now_s: monotonic clock, seconds.
        """
        for request_id in request_ids:
            entry = self._ledger.find_request(request_id)
            if entry is None or entry.ended:
                self._ledger.report(request_id)
            elif entry.held_since_s is None:
                entry.held_since_s = now_s
                entry.confirm(entry.last_chunks, mark)
                self._ledger.note(entry)

    def hold(self, key: int, request_id: int, num_pages: int, last: LastWord) -> bool:
        """Whether holding a finished request's pages would let saves succeed, and is allowed.

        What was named for a forward that then failed is not computed, although its request may be
        announced as finished: only ``last`` tells.

        Args:
            key: our number of the request.
            request_id: the host's id.
            num_pages: all pages of the request.
            last: how far it was computed.
        """
        if last.names is not None:
            self._name(last.names)
        entry = self._ledger.find(key)
        if entry is None or entry.ended or not entry.is_outstanding(last.valid_chunks):
            return False
        entry.last_chunks = last.valid_chunks
        return self._ledger.hold(request_id, num_pages)

    def abandon(self) -> None:
        """Withdraws everything: the engine's reports made no sense, or the engine ends."""
        for entry in self._ledger.entries():
            self._ledger.remove(entry)

    def _name(self, names: SaveNames) -> None:
        ledger = self._ledger
        entry = ledger.find(names.key)
        if entry is None:
            entry = ledger.open(names.request_id, names.key, names.first_chunk, names.parent)
            if entry is None:
                return
        if names.first_chunk != entry.named:
            ledger.count("saves_dropped_gap")
            return
        entry.add(names.keys, names.pages, ledger.ticks.of(names.pages))

    def _end(self, key: int) -> None:
        entry = self._ledger.find(key)
        if entry is None:
            return
        entry.ended = True
        if entry.stage is Stage.IDLE:
            self._ledger.remove(entry)
