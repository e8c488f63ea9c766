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
from typing import Final

from adapter.channel import MAX_IN_FLIGHT, Channel, Completion
from adapter.geometry import Geometry
from adapter.journal import Journal
from adapter.layersaves import LayerSaves
from adapter.link import Joined, Link
from adapter.metadata import ConnectorMetadata, LastWord
from adapter.pagememory import PageMemory
from adapter.ring import Lot, StagingRing
from adapter.savebook import SaveBook
from adapter.saveentry import Mark
from adapter.saveflow import MAX_UNSETTLED, SaveFlow, Settlement, StoreOrder
from adapter.saveledger import SaveLedger
from adapter.savespans import SaveSpans
from adapter.staging import PIECE_BYTES, Stager
from adapter.tickets import AGAIN_S, Purpose, Ticket, Tickets
from protocol import limits
from protocol.errors import REJOIN, ErrorCode, ReplyError, UnreachableError
from protocol.messages import Cancel, Commit, CommitReply, StopReason, Store, StoreReply

STORE_TIMEOUT_S: Final = 20.0
SETTLE_TIMEOUT_S: Final = 5.0
_GATE_POLL_S: Final = 0.004
_REPLY_POLL_S: Final = 0.01
"""Waiting for a stream or for the server: a reply ends the wait at once, new work does not. Each
turn takes the engine's thread the GIL for some 50 µs."""
_PROOF_POLL_S: Final = 0.1
_LAYERS_S: Final = 0.02
"""Layers may be copied for so long before anything else is looked at."""
_IDLE_S: Final = 1.0
_RETRY_S: Final = 0.05


class Saver:
    """Saves of one rank: the shared ledger, its lock, and the thread that empties it."""

    def __init__(
        self,
        link: Link,
        geometry: Geometry,
        held_percent: int,
        journal: Journal,
        enter_device: Callable[[], None] = lambda: None,
        memory: PageMemory | None = None,
        ring: StagingRing | None = None,
        *,
        by_layer: bool = False,
        spans: SaveSpans | None = None,
    ) -> None:
        """Starts nothing.

        Args:
            link: to the server.
            geometry: of this rank's pages.
            held_percent: share of the pool that finished requests may hold.
            journal: takes what goes wrong.
            enter_device: called first in the saver's thread, which asks the engine's stream for
                marks; the link's threads touch nothing of the device.
            memory: the pages; needed with a ring only, be it one that comes later.
            ring: registered in place of the pool: pages are copied into it first. None when the
                server reads the pool itself.
            by_layer: with a ring, chunks are staged layer by layer while their forward runs.
            spans: of saves, where requests are traced.
        """
        self._link = link
        self._enter_device = enter_device
        self._journal = journal
        self._geometry = geometry
        self._memory = memory
        self._ring = ring
        self._stager: Stager | None = None
        self._has_peers = geometry.num_ranks > 1
        self._ledger = SaveLedger(geometry, held_percent, ring)
        self._layers: LayerSaves | None = None
        if ring is not None and memory is not None:
            self._stager = Stager(memory, ring, journal)
            if by_layer and memory.layers:
                self._layers = LayerSaves(self._ledger, memory.layers.keys())
        self._book = SaveBook(self._ledger, self._layers)
        self._flow = SaveFlow(self._ledger)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = self._is_off = False
        self._joined: Joined | None = None
        self._next_store, self._has_layers = 1, False
        self._tickets, self._spans = Tickets(), spans or SaveSpans()
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
                self._turn_off()
                raise
            busy = self._ledger.has_work
        if busy:
            self._wake.set()

    def launched(self) -> None:
        """See ``SaveBook.launched``: ``wait_for_save`` came after the last bind."""
        with self._lock:
            self._book.launched()

    def layer_done(self, layer: int, mark: Mark) -> None:
        """A layer of the forward was launched; see ``LayerSaves.layer_done``.

        Args:
            layer: model layer.
            mark: a point in the stream behind it.
        """
        if self._layers is None or self._is_off:
            return
        with self._lock:
            self._layers.layer_done(layer, mark)
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
            num_pages: all pages of the request, over all layer groups.
            last: how far it was computed, and what was not named before.

        Returns:
            True if so; the id then comes out of ``take_saved`` after ``finished`` named it.
        """
        if self._is_off or self._link.joined is None or self._link.is_breaker_open:
            return False
        with self._lock:
            return self._book.hold(key, request_id, num_pages, last, self._has_peers)

    def ended(self, key: int) -> None:
        """A request's pages go back to the host now: its saves are withdrawn at once.

        Its key comes with the next metadata as well, for the other ranks; an idle engine has none.

        Args:
            key: our number of the request.
        """
        with self._lock:
            self._book.ended(key)
        self._wake.set()

    def take_saved(self) -> list[int]:
        """Ids whose pages the host may have back; each once."""
        with self._lock:
            return self._ledger.take_saved()

    def abandon(self) -> None:
        """Withdraws all saves for good; what was copied is not committed."""
        with self._lock:
            self._turn_off()

    def _turn_off(self) -> None:
        self._is_off = True
        self._book.abandon()
        if self._layers is not None:
            self._layers.abandon()

    def use_ring(self, ring: StagingRing) -> None:
        """From now on pages go through a ring: the server cannot read the pool after all.

        Args:
            ring: what is registered from now on; nothing stands registered meanwhile.
        """
        if self._memory is None or self._ring is not None:
            return
        stager = Stager(self._memory, ring, self._journal)
        with self._lock:
            self._ring = self._ledger.ring = ring
            self._stager = stager

    def counters(self) -> dict[str, int]:
        """What happened to saves, by name, and how many pages are held now."""
        with self._lock:
            counts = dict(self._ledger.counts)
            counts["held_pages"] = self._ledger.num_held_pages
            counts["open_saves"] = self._ledger.num_entries
            counts["busy_saves"] = len(self._ledger.busy())
            if self._ring is not None:
                counts["ring_lots_lent"] = self._ring.num_lent
        return counts

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread.

        Args:
            timeout_s: longest wait for it.

        Returns:
            Whether it has ended, so that nothing is copied out of the pool here any more.
        """
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

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
                    self._lose(self._joined)
                    self._pause(_RETRY_S)
        finally:
            channel.close()

    def _turn(self, channel: Channel) -> None:
        joined = self._link.joined
        if _registration(joined) != _registration(self._joined):
            self._change(joined)
        self._copy_layers()
        if self._layers is not None:
            with self._lock:
                self._layers.expire(time.monotonic())
        if joined is None:
            with self._lock:
                self._flow.give_up_held()
                wait_s = _RETRY_S if self._ledger.has_work else _IDLE_S
                if self._layers is not None and self._layers.has_work:
                    wait_s = _GATE_POLL_S
            self._pause(wait_s)
            return
        try:
            self._cancel_orphans(channel, joined)
            self._send(channel, joined)
        except UnreachableError:
            self._lose(joined)
            channel.give_up()  # else what is lost takes the room of what comes
            self._pause(_RETRY_S)
            return
        if self._tickets:
            for completion in channel.poll(min(_REPLY_POLL_S, self._idle_wait_s())):
                self._complete(completion)
        else:
            self._pause(self._idle_wait_s())

    def _change(self, joined: Joined | None) -> None:
        """Another registration stands, or none."""
        if self._joined is not None:  # without a registration nothing was in flight
            self._lose(joined)
        self._joined = joined
        if joined is not None:
            # A registration can only follow the end of the one before: no STORE of that one is
            # committed any more, whatever it reads.
            self._give_back(self._tickets.registered())

    def _idle_wait_s(self) -> float:
        if self._has_layers:
            return 0.0
        with self._lock:
            entries = self._ledger.busy()
            if any(entry.num_gates for entry in entries):
                return _GATE_POLL_S
            if self._layers is not None and self._layers.has_work:
                return _GATE_POLL_S
            return _PROOF_POLL_S if entries else _IDLE_S

    def _copy_layers(self) -> None:
        end_s, self._has_layers = time.monotonic() + _LAYERS_S, False
        while self._layers is not None and self._stager is not None and not self._stopping:
            self._has_layers = time.monotonic() >= end_s
            if self._has_layers:
                return
            with self._lock:
                copy = self._layers.next_copy()
            if copy is None:
                return
            is_good = self._stager.stage_layer(copy.layer, copy.runs)
            with self._lock:
                self._layers.copied(copy, is_good)

    def _send(self, channel: Channel, joined: Joined) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._flow.expire(now_s)
            settlements = self._flow.next_settlements(now_s)
            orders = self._flow.next_stores(self._max_chunks(joined))
        unsent = deque(orders)
        try:
            for settlement in settlements:
                self._send_settlement(channel, joined, settlement)
            while unsent:
                self._send_store(channel, joined, unsent[0])
                unsent.popleft()
        finally:
            self._give_back(order.lot for order in unsent)

    def _max_chunks(self, joined: Joined) -> int:
        chunk_blocks = self._geometry.chunk_blocks
        most = min(joined.max_blocks, limits.MAX_BLOCKS_PER_MESSAGE) // chunk_blocks
        if self._ring is not None:
            largest = max(group.page_bytes for group in self._geometry.groups)
            most = min(most, PIECE_BYTES // (largest * chunk_blocks))
        return max(1, most)

    def _give_back(self, lots: Iterable[Lot | None]) -> None:
        if self._ring is not None:
            with self._lock:
                self._ring.give_back_all(lots)

    def _send_store(self, channel: Channel, joined: Joined, order: StoreOrder) -> None:
        if not self._stage(order):
            return
        store = self._next_store
        self._next_store += 1
        body = Store(
            session=joined.session,
            store=store,
            request=order.key,
            shard=self._geometry.shards[order.group],
            start=order.first_chunk,
            parent=order.parent,
            keys=order.keys,
            pages=order.pages,
            tenant=order.tenant if joined.knows_tenants else b"",
            traceparent=self._spans.begin(store, order, joined.knows_traces),
        )
        ticket = channel.submit(body, STORE_TIMEOUT_S, joined)
        self._tickets.sent(ticket, Ticket(Purpose.STORE, store, order.key, order.group, order.lot))
        with self._lock:
            self._flow.sent(order.key, order.group, store)

    def _stage(self, order: StoreOrder) -> bool:
        """Copies an order's pages into the ring; False when that failed and the save is over."""
        if order.lot is None or order.sources is None:
            return True
        if self._stager is not None and self._stager.stage(order.lot, order.sources):
            return True
        with self._lock:
            self._flow.failed(order.key, order.group, time.monotonic())
        self._give_back((order.lot,))
        return False

    def _send_settlement(self, channel: Channel, joined: Joined, it: Settlement) -> None:
        body: Commit | Cancel = Cancel(session=joined.session, store=it.store)
        if it.count:
            body = Commit(session=joined.session, store=it.store, count=it.count)
        ticket = channel.submit(body, SETTLE_TIMEOUT_S, joined)
        self._tickets.sent(ticket, Ticket(Purpose.SETTLE, it.store, it.key, it.group))

    def _cancel_orphans(self, channel: Channel, joined: Joined) -> None:
        """Frees reservations of STOREs whose answer never came, and the ring slots they read."""
        now_s = time.monotonic()
        while channel.num_in_flight < MAX_IN_FLIGHT - MAX_UNSETTLED:
            orphan = self._tickets.next_orphan(now_s)
            if orphan is None:
                return
            body = Cancel(session=joined.session, store=orphan.store)
            self._tickets.withdrawing(channel.submit(body, SETTLE_TIMEOUT_S, joined))

    def _complete(self, completion: Completion) -> None:
        ticket, error = self._tickets.find(completion.ticket), completion.error
        if ticket is None:
            return
        now_s, is_orphan = time.monotonic(), ticket.purpose is Purpose.WITHDRAW
        is_answer = error is None or (isinstance(error, ReplyError) and error.code not in REJOIN)
        if not is_answer and not is_orphan:
            self._journal.report("saves_lost", f"saves in flight are dropped: {error}")
            self._lose(self._joined)
            return
        self._tickets.answered(completion.ticket)
        self._spans.answered(ticket, completion)
        if is_orphan and error is not None and (error.retryable or not is_answer):
            # It is not withdrawn: whatever was lent to the server stays with it.
            self._tickets.orphan(ticket.store, ticket.lot, now_s + AGAIN_S)
            return
        self._give_back((ticket.lot,))  # an answer of any kind: its copies have ended
        if is_orphan:
            return
        body, key, group = completion.body, ticket.key, ticket.group
        if error is not None:
            self._journal.report("saves_refused", f"a save was refused: {error}", about=ticket.who)
            with self._lock:
                self._flow.failed(key, group, now_s)
            if ticket.purpose is Purpose.SETTLE and error.code != ErrorCode.UNKNOWN_STORE:
                self._tickets.orphan(ticket.store, None, now_s + AGAIN_S)
            return
        with self._lock:
            if isinstance(body, StoreReply):
                self._flow.copied(key, group, body.held, body.copied, body.stop, now_s)
            elif isinstance(body, CommitReply):
                self._flow.settled(key, group, body.published, body.stop, now_s)
            else:
                self._flow.settled(key, group, 0, StopReason.NONE, now_s)

    def _lose(self, joined: Joined | None) -> None:
        """Forgets what was in flight.

        Args:
            joined: the registration that stands now; while it is still the same one, its STOREs
                are withdrawn, for the server may have seen them.
        """
        with self._lock:
            lost = self._flow.server_lost(time.monotonic())
        is_same = joined is not None and _registration(joined) == _registration(self._joined)
        self._tickets.lose(lost, is_same)
        self._spans.lost()

    def _pause(self, wait_s: float) -> None:
        self._wake.wait(wait_s)
        self._wake.clear()


def _registration(joined: Joined | None) -> tuple[bytes, int] | None:
    return None if joined is None else (joined.epoch, joined.session)
