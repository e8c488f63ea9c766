"""The saver: the thread that has confirmed chunks copied and then commits or withdraws them.

The executor's thread reports through ``bound`` and ``finished``, which only take a lock and wake
the saver; all waiting is done here, on a connection of the thread's own. With no server, or one
that does not answer, saves are dropped and held pages go back (design rules 6 and 8).

Must not know: the host's classes, hashes, streams beyond "is this point passed".
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from adapter.channel import Channel, Completion
from adapter.identity import Geometry
from adapter.journal import Journal
from adapter.link import Joined, Link
from adapter.metadata import ConnectorMetadata, LastWord
from adapter.savebook import SaveBook
from adapter.saveentry import Mark
from adapter.saveflow import SaveFlow, Settlement, StoreOrder
from adapter.saveledger import SaveLedger
from protocol import limits
from protocol.errors import REJOIN, KvkeepError, ReplyError, UnreachableError
from protocol.messages import Cancel, Commit, CommitReply, StopReason, Store, StoreReply

STORE_TIMEOUT_S: Final = 20.0
SETTLE_TIMEOUT_S: Final = 5.0
_GATE_POLL_S: Final = 0.004
_REPLY_POLL_S: Final = 0.01
"""Waiting for a stream or for the server: a reply ends the wait at once, new work does not. Each
turn takes the engine's thread the GIL for some 50 µs."""
_PROOF_POLL_S: Final = 0.1
_IDLE_S: Final = 1.0
_RETRY_S: Final = 0.05
_MAX_ORPHANS: Final = 256
_SHARD: Final = 0


@dataclass(frozen=True)
class _Ticket:
    """A request in flight."""

    key: int
    store: int
    count: int = -1  # -1: STORE; 0: CANCEL; else COMMIT


class Saver:
    """Saves of one rank: the shared ledger, its lock, and the thread that empties it."""

    def __init__(
        self,
        link: Link,
        geometry: Geometry,
        held_percent: int,
        journal: Journal,
        enter_device: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts nothing.

        Args:
            link: to the server.
            geometry: of the pool.
            held_percent: share of the pool that finished requests may hold.
            journal: takes what goes wrong.
            enter_device: called first in the saver's thread, which asks the engine's stream for
                marks; the link's threads touch nothing of the device.
        """
        self._link = link
        self._enter_device = enter_device
        self._journal = journal
        self._chunk_blocks = geometry.chunk_blocks
        self._ledger = SaveLedger(geometry.num_pages, geometry.chunk_blocks, held_percent)
        self._book = SaveBook(self._ledger)
        self._flow = SaveFlow(self._ledger)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._is_off = False
        self._joined: Joined | None = None
        self._next_store = 1
        self._tickets: dict[int, _Ticket] = {}
        self._orphans: deque[int] = deque(maxlen=_MAX_ORPHANS)
        self._thread = threading.Thread(target=self._run, name="kvkeep-saver", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    # --- the executor's thread ---------------------------------------------------------------

    def bound(self, metadata: ConnectorMetadata, mark: Mark | None) -> None:
        """See ``SaveBook.bound``; if the report makes no sense, no save is trusted any more."""
        if self._is_off:
            return
        with self._lock:
            try:
                self._book.bound(metadata, mark)
            except Exception:
                self._is_off = True
                self._book.abandon()
                raise
            busy = self._ledger.has_work
        if busy:
            self._wake.set()

    def finished(self, request_ids: Iterable[int], mark: Mark | None) -> None:
        """See ``SaveBook.finished``."""
        with self._lock:
            self._book.finished(request_ids, mark, time.monotonic())
        self._wake.set()

    def hold(self, key: int, request_id: int, num_pages: int, last: LastWord) -> bool:
        """Whether a finished request's pages are to be kept for its saves, and may be.

        Args:
            key: our number of the request.
            request_id: the host's id.
            num_pages: all pages of the request.
            last: how far it was computed, and what was not named before.

        Returns:
            True if so; the id then comes out of ``take_saved`` after ``finished`` named it.
        """
        if self._is_off or self._link.joined is None or self._link.is_breaker_open:
            return False
        with self._lock:
            return self._book.hold(key, request_id, num_pages, last)

    def take_saved(self) -> list[int]:
        """Ids whose pages the host may have back; each once."""
        with self._lock:
            return self._ledger.take_saved()

    def abandon(self) -> None:
        """Withdraws all saves for good; what was copied is not committed."""
        with self._lock:
            self._is_off = True
            self._book.abandon()

    def counters(self) -> dict[str, int]:
        """What happened to saves, by name, and how many pages are held now."""
        with self._lock:
            counts = dict(self._ledger.counts)
            counts["held_pages"] = self._ledger.num_held_pages
            counts["open_saves"] = self._ledger.num_entries
        return counts

    def stop(self, timeout_s: float) -> None:
        """Ends the thread.

        Args:
            timeout_s: longest wait for it.
        """
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    # --- the saver's thread --------------------------------------------------------------------

    def _run(self) -> None:
        channel = self._link.open_channel()
        try:
            self._enter_device()
        except Exception as error:  # noqa: BLE001 - marks that cannot be asked drop their saves
            self._journal.report("device_errors", f"saves may be dropped: {error!r}")
        try:
            while not self._stopping:
                try:
                    self._turn(channel)
                except Exception as error:  # noqa: BLE001 - a save may fail, the thread may not
                    self._journal.report("saver_errors", f"saves dropped: {error!r}")
                    self._lose(None)
                    self._pause(_RETRY_S)
        finally:
            channel.close()

    def _turn(self, channel: Channel) -> None:
        joined = self._link.joined
        if _registration(joined) != _registration(self._joined):
            if self._joined is not None:  # without a registration nothing was in flight
                self._lose(joined)
            self._joined = joined
        if joined is None:
            with self._lock:
                self._flow.give_up_held()
                busy = self._ledger.has_work
            self._pause(_RETRY_S if busy else _IDLE_S)
            return
        try:
            self._cancel_orphans(channel, joined)
            self._send(channel, joined)
        except UnreachableError:
            self._lose(joined)
            self._pause(_RETRY_S)
            return
        if self._tickets:
            for completion in channel.poll(min(_REPLY_POLL_S, self._idle_wait_s())):
                self._complete(completion)
        else:
            self._pause(self._idle_wait_s())

    def _idle_wait_s(self) -> float:
        with self._lock:
            entries = self._ledger.busy()
            if any(entry.num_gates for entry in entries):
                return _GATE_POLL_S
            return _PROOF_POLL_S if entries else _IDLE_S

    def _send(self, channel: Channel, joined: Joined) -> None:
        now_s = time.monotonic()
        max_chunks = min(joined.max_blocks, limits.MAX_BLOCKS_PER_MESSAGE) // self._chunk_blocks
        with self._lock:
            self._flow.expire(now_s)
            settlements = self._flow.next_settlements(now_s)
            orders = self._flow.next_stores(max(1, max_chunks))
        for settlement in settlements:
            self._send_settlement(channel, joined, settlement)
        for order in orders:
            self._send_store(channel, joined, order)

    def _send_store(self, channel: Channel, joined: Joined, order: StoreOrder) -> None:
        store = self._next_store
        self._next_store += 1
        body = Store(
            session=joined.session,
            store=store,
            request=order.key,
            shard=joined.namespace.shard(_SHARD, joined.rank),
            start=order.first_chunk,
            parent=order.parent,
            keys=order.keys,
            pages=order.pages,
        )
        with self._lock:
            self._flow.sent(order.key, store)
        ticket = channel.submit(body, STORE_TIMEOUT_S, joined)
        self._tickets[ticket] = _Ticket(order.key, store)

    def _send_settlement(self, channel: Channel, joined: Joined, it: Settlement) -> None:
        if it.count:
            body: Commit | Cancel = Commit(session=joined.session, store=it.store, count=it.count)
        else:
            body = Cancel(session=joined.session, store=it.store)
        ticket = channel.submit(body, SETTLE_TIMEOUT_S, joined)
        self._tickets[ticket] = _Ticket(it.key, it.store, it.count)

    def _cancel_orphans(self, channel: Channel, joined: Joined) -> None:
        """Frees reservations of STOREs whose answer never came; answers are not awaited."""
        while self._orphans:
            channel.submit(
                Cancel(session=joined.session, store=self._orphans[0]), SETTLE_TIMEOUT_S, joined
            )
            self._orphans.popleft()

    def _complete(self, completion: Completion) -> None:
        ticket = self._tickets.pop(completion.ticket, None)
        if ticket is None:
            return
        if completion.error is not None:
            self._refused(ticket, completion.error)
            return
        now_s, body = time.monotonic(), completion.body
        with self._lock:
            if isinstance(body, StoreReply):
                self._flow.copied(ticket.key, body.held, body.copied, body.stop, now_s)
            elif isinstance(body, CommitReply):
                self._flow.settled(ticket.key, body.published, body.stop, now_s)
            else:
                self._flow.settled(ticket.key, 0, StopReason.NONE, now_s)

    def _refused(self, ticket: _Ticket, error: KvkeepError) -> None:
        if not isinstance(error, ReplyError) or error.code in REJOIN:
            self._journal.report("saves_lost", f"saves in flight are dropped: {error}")
            self._lose(self._joined)
            return
        self._journal.report("saves_refused", f"a save was refused: {error}")
        with self._lock:
            self._flow.failed(ticket.key, time.monotonic())

    def _lose(self, joined: Joined | None) -> None:
        """Forgets what was in flight.

        Args:
            joined: the registration that stands now; while it is still the same one, its STOREs
                are withdrawn, for the server may have seen them.
        """
        self._tickets.clear()
        with self._lock:
            lost = self._flow.server_lost(time.monotonic())
        if joined is not None and _registration(joined) == _registration(self._joined):
            self._orphans.extend(store for store in lost if store)
        else:
            self._orphans.clear()

    def _pause(self, wait_s: float) -> None:
        self._wake.wait(wait_s)
        self._wake.clear()


def _registration(joined: Joined | None) -> tuple[bytes, int] | None:
    return None if joined is None else (joined.epoch, joined.session)
