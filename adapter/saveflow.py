"""What the server is asked about saves, and when a copy may be published (design rule 1).

Confirmed chunks are *copied* by the server and *committed* only if the request is seen to own its
pages after the copy: a report bound later names it alive, or its pages are held; and only if none
of them was handed out since. Everything else is withdrawn, which is always safe.

Must not know: sockets, the host's classes, threads. Runs in: the saver's thread, under its lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from adapter.saveentry import SaveEntry, Stage
from adapter.saveledger import SaveLedger
from protocol.messages import StopReason

PROOF_S: Final = 30.0
"""Longest wait between a copy and the report that proves its request alive."""

MAX_COPYING: Final = 8
MAX_UNSETTLED: Final = 40
"""Bounds of one rank's STOREs; all of them fit into one connection's outstanding requests."""


@dataclass(frozen=True)
class StoreOrder:
    """One STORE to send.

    Attributes:
        key: our number of the request.
        first_chunk: ordinal of the first chunk.
        parent: key of the chunk before it, or empty.
        keys: 16 bytes per chunk.
        pages: int32 LE page ids, ``chunk_blocks`` per chunk.
        num_chunks: chunks.
    """

    key: int
    first_chunk: int
    parent: bytes
    keys: bytes
    pages: bytes
    num_chunks: int


@dataclass(frozen=True)
class Settlement:
    """One COMMIT or CANCEL to send.

    Attributes:
        key: our number of the request.
        store: the STORE it settles.
        count: leading chunks to publish; 0 means CANCEL.
    """

    key: int
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
            At most one per request: the parent of the next one must be held before it is sent.
        """
        busy = self._ledger.busy()
        stages = [entry.stage for entry in busy]
        num_copying, num_idle = stages.count(Stage.COPYING), stages.count(Stage.IDLE)
        room = min(MAX_COPYING - num_copying, MAX_UNSETTLED - (len(stages) - num_idle))
        orders: list[StoreOrder] = []
        for entry in busy:
            if len(orders) >= room:
                break
            if entry.stage is not Stage.IDLE or self._now_s < entry.not_before_s:
                continue
            entry.pass_gates()
            if entry.ended:
                self._ledger.count("saves_dropped_stream_failed")
                self._ledger.remove(entry)
            elif entry.num_ready:
                orders.append(self._order(entry, min(entry.num_ready, max_chunks)))
        return orders

    def _order(self, entry: SaveEntry, num_chunks: int) -> StoreOrder:
        first = entry.next_chunk
        keys, pages, parent = entry.part(first, num_chunks, self._ledger.chunk_blocks)
        entry.stage, entry.sent_chunks = Stage.COPYING, num_chunks
        return StoreOrder(entry.key, first, parent, keys, pages.tobytes(), num_chunks)

    def sent(self, key: int, store: int) -> None:
        """A STORE went out.

        Args:
            key: our number of the request.
            store: the id it went out under.
        """
        entry = self._ledger.find(key)
        if entry is not None:
            entry.store = store

    def next_settlements(self, now_s: float) -> list[Settlement]:
        """Copies that can be committed, or must be withdrawn, now; they count as sent.

        Args:
            now_s: monotonic clock, seconds.
        """
        result = []
        for entry in self._ledger.busy():
            if entry.stage is Stage.COPIED:
                settlement = self._settle(entry, now_s)
                if settlement is not None:
                    entry.stage = Stage.SETTLING
                    result.append(settlement)
        return result

    def _settle(self, entry: SaveEntry, now_s: float) -> Settlement | None:
        ledger = self._ledger
        chunk = ledger.chunk_blocks
        pages, seen = entry.pages_and_ticks(entry.next_chunk, entry.copied, chunk)
        unchanged = ledger.ticks.num_unchanged(pages, seen) // chunk
        owns_pages = not entry.ended and (
            entry.held_since_s is not None or entry.alive_bind > entry.copied_bind
        )
        if unchanged and owns_pages:
            return Settlement(entry.key, entry.store, unchanged)
        is_late = now_s - entry.copied_s > PROOF_S or ledger.is_overdue(entry, now_s)
        if entry.ended or unchanged == 0 or is_late:
            ledger.count("saves_withdrawn")
            return Settlement(entry.key, entry.store, 0)
        return None

    def copied(self, key: int, held: int, copied: int, stop: StopReason, now_s: float) -> None:
        """A STORE was answered.

        Args:
            key: our number of the request.
            held: leading chunks the server had already.
            copied: chunks after those that await COMMIT.
            stop: why fewer than all.
            now_s: monotonic clock, seconds.
        """
        entry = self._ledger.find(key)
        if entry is None:
            return
        held = min(held, entry.sent_chunks)
        entry.copied = min(copied, entry.sent_chunks - held)
        entry.next_chunk += held
        self._ledger.count("chunks_held_already", held)
        is_short = held + entry.copied < entry.sent_chunks
        if is_short and not (stop is StopReason.BUSY and entry.defer(now_s)):
            self._stall(entry, stop.name.lower())
        entry.stage = Stage.COPIED if entry.copied else Stage.IDLE
        entry.copied_bind, entry.copied_s = self._ledger.num_binds, now_s
        self._ledger.tidy(entry, now_s)

    def settled(self, key: int, published: int, stop: StopReason, now_s: float) -> None:
        """A COMMIT (``published`` chunks) or a CANCEL (0) was answered.

        Args:
            key: our number of the request.
            published: chunks the server holds by it.
            stop: why fewer than asked.
            now_s: monotonic clock, seconds.
        """
        entry = self._ledger.find(key)
        if entry is None:
            return
        published = min(published, entry.copied)
        entry.stage = Stage.IDLE
        entry.next_chunk += published
        self._ledger.count("chunks_saved", published)
        if published < entry.copied:
            self._stall(entry, "withdrawn" if stop is StopReason.NONE else stop.name.lower())
        entry.copied = 0
        self._ledger.tidy(entry, now_s)

    def failed(self, key: int, now_s: float) -> None:
        """The server refused a request about this save; what it was about is dropped.

        Args:
            key: our number of the request.
            now_s: monotonic clock, seconds.
        """
        entry = self._ledger.find(key)
        if entry is None:
            return
        entry.stage, entry.copied = Stage.IDLE, 0
        self._stall(entry, "refused")
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
            if entry.stage is not Stage.IDLE:
                lost.append(entry.store)
                self._ledger.count("saves_dropped_server_lost")
            entry.start_over()
            if entry.held_since_s is not None or entry.ended:
                self._ledger.remove(entry)
            else:
                self._ledger.tidy(entry, now_s)
                self._ledger.note(entry)
        return lost

    def give_up_held(self) -> None:
        """There is no server: held pages go back to the host at once."""
        for entry in self._ledger.entries():
            if entry.held_since_s is not None and entry.stage is Stage.IDLE:
                self._ledger.count("saves_dropped_no_server")
                self._ledger.remove(entry)

    def expire(self, now_s: float) -> None:
        """Gives pages back that were held too long; what was put off may be due from ``now_s`` on.

        Args:
            now_s: monotonic clock, seconds.
        """
        self._now_s = now_s
        for entry in self._ledger.busy():
            if entry.stage is Stage.IDLE and self._ledger.is_overdue(entry, now_s):
                self._ledger.count("saves_dropped_hold_expired")
                self._ledger.remove(entry)

    def _stall(self, entry: SaveEntry, why: str) -> None:
        self._ledger.count(f"saves_stopped_{why}")
        entry.stall()
