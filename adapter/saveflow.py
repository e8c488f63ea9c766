"""What the server is asked about saves, and when a copy may be published (design rule 1).

Confirmed chunks are *copied* by the server and *committed* only if the request is seen to own its
pages after the copy: a report bound later names it alive, or its pages are held; and only if none
of them was handed out since. Everything else is withdrawn, which is always safe.

Must not know: sockets, the host's classes, threads. Runs in: the saver's thread, under its lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adapter.ring import Lot
from adapter.saveentry import SaveEntry
from adapter.savelane import SaveLane, Stage
from adapter.saveledger import SaveLedger
from protocol.messages import StopReason

PROOF_S: Final = 10.0
"""Longest wait between a copy and the report that proves its request alive."""

MAX_COPYING: Final = 8
MAX_UNSETTLED: Final = 40
"""Bounds of one rank's STOREs; all of them fit into one connection's outstanding requests."""


@dataclass(frozen=True)
class StoreOrder:
    """One STORE to send.

    Attributes:
        key: our number of the request.
        group: layer group.
        first_chunk: ordinal of the first chunk.
        parent: key of the chunk before it, or empty.
        keys: 16 bytes per chunk.
        pages: int32 LE page ids as the server knows them, ``chunk_blocks`` per chunk.
        num_chunks: chunks.
        lot: the ring slots that the pages stand for; None when the server reads the pool itself.
        sources: int32[n], pages of the pool to be copied into the slots first; None when that is
            done, or without a ring.
        tenant: digest of the request's salt, or empty.
    """

    key: int
    group: int
    first_chunk: int
    parent: bytes
    keys: bytes
    pages: bytes
    num_chunks: int
    lot: Lot | None = None
    sources: NDArray[np.int32] | None = None
    tenant: bytes = b""


@dataclass(frozen=True)
class Settlement:
    """One COMMIT or CANCEL to send.

    Attributes:
        key: our number of the request.
        group: layer group.
        store: the STORE it settles.
        count: leading chunks to publish; 0 means CANCEL.
    """

    key: int
    group: int
    store: int
    count: int


class SaveFlow:
    """The server's side of all saves of one rank."""

    def __init__(self, ledger: SaveLedger) -> None:
        """Works on a ledger.

        Args:
            ledger: shared with the book.
        """
        self._ledger = ledger
        self._now_s = 0.0

    def next_stores(self, max_chunks: int) -> list[StoreOrder]:
        """Saves that may be copied now; they count as sent.

        Args:
            max_chunks: most chunks of one STORE.

        Returns:
            At most one per request and layer group: the parent of the next one must be held
            before it is sent.
        """
        busy = self._ledger.busy()
        stages = [lane.stage for entry in busy for lane in entry.lanes]
        num_copying = stages.count(Stage.COPYING)
        num_unsettled = len(stages) - stages.count(Stage.IDLE)
        room = min(MAX_COPYING - num_copying, MAX_UNSETTLED - num_unsettled)
        orders: list[StoreOrder] = []
        for entry in busy:
            if len(orders) >= room:
                break
            self._pass_gates(entry)
            if entry.ended:
                continue
            due = list(self._orders(entry, room - len(orders), max_chunks))
            if not due:  # what was waiting to be sent may have left its window meanwhile
                self._ledger.tidy(entry, self._now_s)
            orders += due
        return orders

    def _pass_gates(self, entry: SaveEntry) -> None:
        was_ended = entry.ended
        entry.pass_gates()
        if entry.ended != was_ended:
            self._ledger.count("saves_dropped_stream_failed")
            if entry.is_idle:
                self._ledger.remove(entry)

    def _orders(self, entry: SaveEntry, room: int, max_chunks: int) -> Iterator[StoreOrder]:
        for lane in entry.lanes:
            if room <= 0:
                return
            if lane.stage is not Stage.IDLE or self._now_s < lane.not_before_s:
                continue
            count = min(entry.num_ahead(lane, entry.passed), max_chunks)
            order = self._order(entry, lane, entry.num_present(lane, count)) if count else None
            if order is not None:
                room -= 1
                yield order

    def _order(self, entry: SaveEntry, lane: SaveLane, count: int) -> StoreOrder | None:
        """One STORE of at most ``count`` chunks; None while the ring has no room for it."""
        first = lane.next_chunk
        pages, _ = entry.pages_and_ticks(lane.group, first, count)
        lot: Lot | None = None
        sources: NDArray[np.int32] | None = None
        if self._ledger.ring is not None:
            chunk, staged = self._ledger.chunk_blocks, self._take_staged(lane, count)
            if staged is not None:
                lot, pages = staged
            else:
                count = min(count, self._ledger.ring.num_free_chunks(lane.group))
                lot = self._ledger.ring.take(lane.group, count * chunk) if count else None
                if lot is None:
                    return None
                sources, pages = pages[: count * chunk].copy(), lot.slots
            count = pages.size // chunk
        keys, parent = entry.keys_of(first, count)
        lane.stage, lane.store, lane.sent_chunks = Stage.COPYING, 0, count
        blob = pages.tobytes()
        return StoreOrder(
            entry.key, lane.group, first, parent, keys, blob, count, lot, sources, entry.tenant
        )

    def _take_staged(self, lane: SaveLane, count: int) -> tuple[Lot, NDArray[np.int32]] | None:
        """Slots that hold the next chunks already, if there are some."""
        self._ledger.drop_staged(lane, before_chunk=lane.next_chunk)
        for run in lane.staged:
            at = lane.next_chunk - run.first_chunk
            if at >= 0 and run.is_vouched and run.is_complete:
                lane.staged.remove(run)
                chunk = self._ledger.chunk_blocks
                stop = min(run.num_chunks, at + count)
                return run.lot, run.lot.slots[at * chunk : stop * chunk]
        return None

    def sent(self, key: int, group: int, store: int) -> None:
        """A STORE went out.

        Args:
            key: our number of the request.
            group: layer group.
            store: the id it went out under.
        """
        found = self._find(key, group)
        if found is not None:
            found[1].store = store

    def next_settlements(self, now_s: float) -> list[Settlement]:
        """Copies that can be committed, or must be withdrawn, now; they count as sent.

        Args:
            now_s: monotonic clock, seconds.
        """
        result = []
        for entry in self._ledger.busy():
            for lane in entry.lanes:
                if lane.stage is Stage.COPIED:
                    settlement = self._settle(entry, lane, now_s)
                    if settlement is not None:
                        lane.stage = Stage.SETTLING
                        result.append(settlement)
        return result

    def _settle(self, entry: SaveEntry, lane: SaveLane, now_s: float) -> Settlement | None:
        ledger, group = self._ledger, lane.group
        unchanged = lane.proven if lane.proven >= 0 else entry.num_owned(lane, ledger.ticks)
        is_held = entry.held_since_s is not None
        owns_pages = not entry.ended and (is_held or entry.alive_bind > lane.copied_bind)
        if unchanged and owns_pages:
            return Settlement(entry.key, group, lane.store, unchanged)
        is_late = now_s - lane.copied_s > PROOF_S or ledger.is_overdue(entry, now_s)
        if entry.ended or unchanged == 0 or is_late:
            ledger.count("saves_withdrawn")
            return Settlement(entry.key, group, lane.store, 0)
        return None

    def copied(
        self, key: int, group: int, held: int, copied: int, stop: StopReason, now_s: float
    ) -> None:
        """A STORE was answered.

        Args:
            key: our number of the request.
            group: layer group.
            held: leading chunks the server had already.
            copied: chunks after those that await COMMIT.
            stop: why fewer than all.
            now_s: monotonic clock, seconds.
        """
        found = self._find(key, group)
        if found is None:
            return
        entry, lane = found
        held = min(held, lane.sent_chunks)
        lane.copied = min(copied, lane.sent_chunks - held)
        lane.next_chunk += held
        self._ledger.count("chunks_held_already", held)
        is_short = held + lane.copied < lane.sent_chunks
        if is_short and not (stop is StopReason.BUSY and lane.defer(now_s)):
            self._stall(entry, lane, stop.name.lower())
        self._ledger.drop_staged(lane, before_chunk=lane.next_chunk)
        lane.stage = Stage.COPIED if lane.copied else Stage.IDLE
        lane.copied_bind, lane.copied_s = self._ledger.num_binds, now_s
        lane.proven, lane.has_lapsed = -1, False
        self._ledger.tidy(entry, now_s)

    def settled(self, key: int, group: int, published: int, stop: StopReason, now_s: float) -> None:
        """A COMMIT (``published`` chunks) or a CANCEL (0) was answered.

        Args:
            key: our number of the request.
            group: layer group.
            published: chunks the server holds by it.
            stop: why fewer than asked.
            now_s: monotonic clock, seconds.
        """
        found = self._find(key, group)
        if found is None:
            return
        entry, lane = found
        published = min(published, lane.copied)
        lane.stage = Stage.IDLE
        lane.next_chunk += published
        self._ledger.count("chunks_saved", published)
        if published < lane.copied and not lane.has_lapsed:
            why = "withdrawn" if stop is StopReason.NONE else stop.name.lower()
            self._stall(entry, lane, why)
        lane.copied = 0
        self._ledger.drop_staged(lane, before_chunk=lane.next_chunk)
        self._ledger.tidy(entry, now_s)

    def failed(self, key: int, group: int, now_s: float) -> None:
        """The server refused a request about this save; what it was about is dropped.

        Args:
            key: our number of the request.
            group: layer group.
            now_s: monotonic clock, seconds.
        """
        found = self._find(key, group)
        if found is None:
            return
        entry, lane = found
        lane.stage, lane.copied = Stage.IDLE, 0
        self._stall(entry, lane, "refused")
        self._ledger.tidy(entry, now_s)

    def server_lost(self, now_s: float) -> list[int]:
        """What was in flight is gone, and nothing is known to be held.

        Held pages go back to the host; living requests begin anew with their next chunk.

        Args:
            now_s: monotonic clock, seconds.

        Returns:
            Ids of the STOREs that were not settled.
        """
        lost = []
        for entry in self._ledger.entries():
            for lane in entry.lanes:
                if lane.stage is not Stage.IDLE:
                    if lane.store:  # else it never went out
                        lost.append(lane.store)
                    self._ledger.count("saves_dropped_server_lost")
                lane.start_over(entry.first_chunk, entry.confirmed)
            if entry.held_since_s is not None or entry.ended:
                self._ledger.remove(entry)
            else:
                self._ledger.tidy(entry, now_s)
                self._ledger.note(entry)
        return lost

    def give_up_held(self) -> None:
        """There is no server: held pages go back to the host at once."""
        for entry in self._ledger.entries():
            if entry.held_since_s is not None and entry.is_idle:
                self._ledger.count("saves_dropped_no_server")
                self._ledger.remove(entry)

    def expire(self, now_s: float) -> None:
        """Gives pages back that were held too long; what was put off may be due from ``now_s`` on.

        Args:
            now_s: monotonic clock, seconds.
        """
        self._now_s = now_s
        for entry in self._ledger.busy():
            if entry.is_idle and self._ledger.is_overdue(entry, now_s):
                self._ledger.count("saves_dropped_hold_expired")
                self._ledger.remove(entry)

    def _find(self, key: int, group: int) -> tuple[SaveEntry, SaveLane] | None:
        entry = self._ledger.find(key)
        lane = None if entry is None else entry.lane(group)
        return None if entry is None or lane is None else (entry, lane)

    def _stall(self, entry: SaveEntry, lane: SaveLane, why: str) -> None:
        self._ledger.count(f"saves_stopped_{why}")
        lane.stall(entry.confirmed)
        self._ledger.drop_staged(lane)
