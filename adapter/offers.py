"""Asking the server what may be promised to the engine: LOOKUP and RETRIEVE within one budget.

Whatever goes wrong before the promise is a miss; what was leased for it is given back. All queries
of one executor iteration share one budget, and the first time-out ends it (design rule 7, P16).
Where the server has more of a prompt on its way from a lower tier, one QUERY_PREFETCH_STATUS waits
there for it; only what is in L1 by then, and pinned, is offered.

Must not know: the host's classes, pages. Runs in: the executor's thread, on a connection of its
own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from numpy.typing import NDArray

from adapter.channel import Channel
from adapter.geometry import Geometry
from adapter.journal import Journal
from adapter.link import Joined, Link
from adapter.promises import LoadWindow, Offer
from adapter.requeststate import RequestState
from adapter.tracing import NO_SPAN, OpenSpan, Tracer
from adapter.windows import loadable_stop
from protocol import limits
from protocol.errors import (
    ErrorCode,
    KvkeepError,
    ReplyError,
    ReplyMalformedError,
    UnreachableError,
)
from protocol.ids import LeaseId
from protocol.layout import unpack_slots
from protocol.messages import (
    Body,
    EndSession,
    Lookup,
    LookupReply,
    QueryPrefetchStatus,
    Request,
    Retrieve,
    RetrieveReply,
    Stats,
    StatsReply,
)

B = TypeVar("B", bound=Body)

_UNMAPPED: Final = "extents_unmapped"
"""Counter of the server: extents that were passed on and are not reported as mapped yet."""
_MAPPING_POLL_S: Final = 0.005
_STATS_S: Final = 0.5
_CLOSE_S: Final = 0.2
_END_S: Final = 1.0
_LOGGER: Final = logging.getLogger("kvkeep")
_KEPT_SHARE: Final = 0.25
_MOST_KEPT_S: Final = 0.25
"""What waiting for a lower tier leaves of the iteration's budget: a share of it, this at most. It
is for the answer's way back, the RETRIEVE, and the iteration's other requests, which L1 serves."""


class IterationBudget:
    """Time that all queries of one iteration may wait together.

    Attributes:
        kept_s: seconds of it that are not for waiting until a lower tier has delivered.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        """Starts full.

        Args:
            limit_s: seconds per iteration.
            clock: for tests.
        """
        self._limit_s = limit_s
        self._clock = clock
        self._left_s = limit_s
        self.kept_s = min(_KEPT_SHARE * limit_s, _MOST_KEPT_S)

    @property
    def left_s(self) -> float:
        """Seconds left; 0 when it is spent."""
        return max(0.0, self._left_s)

    def now_s(self) -> float:
        """Its clock."""
        return self._clock()

    def spend_since(self, begin_s: float) -> None:
        """Takes off the time since a reading of its clock."""
        self._left_s -= self._clock() - begin_s

    def exhaust(self) -> None:
        """Ends it for this iteration: the server did not answer."""
        self._left_s = 0.0

    def refill(self) -> None:
        """A new iteration begins."""
        self._left_s = self._limit_s


@dataclass(frozen=True)
class Answer:
    """What the server holds for a request.

    Attributes:
        cached_chunks: leading chunks of the prompt that it holds and this engine has mapped.
        offer: what may be promised; None if nothing.
        why: for the log, when there is no offer.
    """

    cached_chunks: int = 0
    offer: Offer | None = None
    why: str = ""


class OfferDesk:
    """Makes offers for requests."""

    def __init__(
        self,
        link: Link,
        geometry: Geometry,
        budget: IterationBudget,
        is_divisible: bool = False,
        journal: Journal | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Connects at the first question, in the thread that asks it.

        Args:
            link: to the server.
            geometry: block and chunk sizes.
            budget: of the iteration.
            is_divisible: whether the host may take any leading part of an offer.
            journal: for counters; None for one of its own.
            tracer: of the engine; None where nothing is traced.
        """
        self._link = link
        self._tracer = tracer
        self._journal = Journal(_LOGGER) if journal is None else journal
        self._is_divisible = is_divisible
        self._geometry = geometry
        self._budget = budget
        self._channel: Channel | None = None
        self._begin_s = 0.0
        self._in_use = threading.Lock()

    def connect(self, timeout_s: float) -> bool:
        """Makes the connection ahead of the first question, for another thread to use.

        Also waits until the extents that the server has passed on are mapped, for what lies in
        others is not found.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether everything that the server holds can be found now.
        """
        if self._channel is None:
            self._channel = self._link.open_channel()
        end_s = time.monotonic() + timeout_s
        try:
            while time.monotonic() < end_s:
                # Time enough for each call: one that runs out opens the breaker for everybody.
                reply = self._channel.call(Stats(), _STATS_S)
                values = reply.values if isinstance(reply, StatsReply) else {}
                if not values.get(_UNMAPPED, 0):
                    return True
                time.sleep(_MAPPING_POLL_S)
        except KvkeepError:
            pass  # uncached at first
        finally:
            self._channel.hand_over()
        return False

    def close(self) -> None:
        """Closes the connection; nobody may ask any more. Idempotent. Any thread.

        An interpreter may end while the executor's thread is asking: its socket is left alone then.
        """
        if self._channel is not None and self._in_use.acquire(timeout=_CLOSE_S):
            try:
                self._channel.close()
            finally:
                self._in_use.release()

    def ask(self, state: RequestState, window: LoadWindow) -> Answer:
        """Looks a request up and retrieves what may be promised.

        Args:
            state: hashed; ``asked`` is set before the first message.
            window: what could be loaded at most.

        Returns:
            The answer; never raises for anything the server does.
        """
        joined = self._link.joined
        if joined is None:
            return Answer(why="not connected")
        if self._budget.left_s <= 0:
            return Answer(why="the iteration's budget is spent")
        # Before the first message checks that this registration still stands: from then on its
        # extents stay mapped.
        self._link.offers.asking(joined.epoch)
        self._begin_s = self._budget.now_s()
        try:
            with self._in_use:
                return self._ask(joined, state, window)
        except UnreachableError as error:
            self._budget.exhaust()
            return Answer(why=f"no answer: {error.message}")
        except ReplyError as error:
            return Answer(why=f"refused: {error}")
        except KvkeepError as error:
            return Answer(why=f"malformed answer: {error}")
        finally:
            self._budget.spend_since(self._begin_s)

    def _ask(self, joined: Joined, state: RequestState, window: LoadWindow) -> Answer:
        state.asked = True
        try:
            return self._look_up(joined, state, window)
        except KvkeepError:
            # Its lease may have been granted all the same, and would be kept from eviction until
            # the request ends, or expires if it ends without a callback. Only a question about the
            # same request that this overtakes is answered by a miss.
            self._link.end_request(state.key)
            raise

    def _look_up(self, joined: Joined, state: RequestState, window: LoadWindow) -> Answer:
        chunk = self._geometry.chunk_blocks
        num_chunks = min(window.num_chunks, joined.max_blocks, limits.MAX_BLOCKS_PER_MESSAGE)
        with self._span(state.key, "kvkeep.lookup") as span:
            found = self._call(
                joined,
                Lookup(
                    session=joined.session,
                    request=state.key,
                    start=0,
                    keys=state.chunk_keys(0, num_chunks, chunk),
                    tenant=state.tenant if joined.knows_tenants else b"",
                    traceparent=span.told(joined.knows_traces),
                ),
                LookupReply,
            )
            span.learn(chunks=num_chunks, ready=found.ready, pending=found.pending)
        if found.pending and not found.final and found.ready * chunk < window.stop_block:
            found = self._await_rest(joined, state, found)
        ready = min(found.ready, num_chunks)
        if self._tracer is not None:
            name = joined.fingerprint.hex()
            self._tracer.learn(
                state.key, namespace=name, chunks_requested=num_chunks, chunks_hit=ready
            )
        stop_block = min(ready * chunk, window.stop_block)
        if stop_block <= window.first_block:
            self._end(state)
            return Answer(ready, None, "nothing beyond the device match")
        first_chunk = window.first_block // chunk
        stop_chunk = -(-stop_block // chunk)
        most = limits.MAX_SLOTS_PER_REPLY // joined.namespace.num_shards
        if stop_chunk - first_chunk > most:
            stop_chunk = first_chunk + most
            stop_block = stop_chunk * chunk
        lease = LeaseId(found.lease)
        with self._span(state.key, "kvkeep.retrieve") as span:
            offer = self._retrieve(joined, lease, window.first_block, stop_block, span)
        self._end_rest(joined, state)
        if offer is None:
            return Answer(ready, None, "not all of it can be read any more")
        return Answer(ready, offer)

    def _await_rest(self, joined: Joined, state: RequestState, found: LookupReply) -> LookupReply:
        """Waits, in the server, for what is on its way from a lower tier.

        One wait for a request, within what the iteration's budget leaves. The server answers at
        its end with what is ready; that more would have come later is no failure of the server,
        and neither is an answer that is a little late: both leave the breaker alone. What comes
        later serves the next request.

        Args:
            joined: the registration of the LOOKUP.
            state: the request.
            found: the LOOKUP's answer.

        Returns:
            A later answer, or the same one where there is no time to wait, or no answer came.
        """
        channel, begin_s = self._channel, self._budget.now_s()
        wait_ms = min(int((self._left_s() - self._budget.kept_s) * 1000), limits.MAX_WAIT_MS)
        if channel is None or wait_ms < 1:
            self._journal.count("tier_waits_skipped")
            return found
        self._journal.count("tier_waits")
        with self._span(state.key, "kvkeep.wait") as span:
            query = QueryPrefetchStatus(
                session=joined.session,
                request=state.key,
                wait_ms=wait_ms,
                traceparent=span.told(joined.knows_traces),
            )
            try:
                ticket = channel.submit(query, self._left_s(), joined)
                later = self._completed(channel, ticket)
            finally:
                waited_s = self._budget.now_s() - begin_s
                self._journal.count("tier_wait_ms", round(waited_s * 1000))
            if later is not None:
                span.learn(ready=later.ready, final=later.final)
        if later is None:
            self._journal.count("tier_waits_unanswered")
            return found
        if not later.final:
            self._journal.count("tier_waits_cut")
        self._journal.count("tier_wait_chunks", max(0, later.ready - found.ready))
        return later

    def _completed(self, channel: Channel, ticket: int) -> LookupReply | None:
        """The answer to a submitted query; None when there was none, or a refusal, in time."""
        while channel.num_in_flight and (left_s := self._left_s()) > 0:
            for completion in channel.poll(left_s):
                if completion.ticket != ticket:
                    continue  # of an END_SESSION, which nobody asks for
                if isinstance(completion.error, UnreachableError):
                    raise completion.error
                body = completion.body
                if body is not None and not isinstance(body, LookupReply):
                    raise ReplyMalformedError(
                        ErrorCode.MALFORMED, f"{type(body).__name__} came where LookupReply belongs"
                    )
                return body
        return None

    def _span(self, key: int, name: str) -> OpenSpan:
        tracer = self._tracer
        return NO_SPAN if tracer is None else tracer.open(key, name)

    def _retrieve(
        self, joined: Joined, lease: LeaseId, first_block: int, stop_block: int, span: OpenSpan
    ) -> Offer | None:
        chunk = self._geometry.chunk_blocks
        first_chunk = first_block // chunk
        count = -(-stop_block // chunk) - first_chunk
        ask = Retrieve(
            session=joined.session,
            lease=lease,
            start=first_chunk,
            count=count,
            traceparent=span.told(joined.knows_traces),
        )
        try:
            reply = self._call(joined, ask, RetrieveReply)
            slots = unpack_slots(reply.slots, count, reply.num_shards)
            offer = self._offer(joined, lease, slots, first_block, stop_block)
            if offer is not None:
                return offer
        except KvkeepError:
            self._link.release(lease, all_readers=True)  # it may have been retrieved all the same
            raise
        self._link.release(lease, all_readers=True)
        return None

    def _offer(
        self,
        joined: Joined,
        lease: LeaseId,
        slots: NDArray[Any],
        first_block: int,
        stop_block: int,
    ) -> Offer | None:
        """What may be promised of the retrieved chunks; gives back what lies behind it."""
        geometry, namespace = self._geometry, joined.namespace
        if slots.shape[1] != namespace.num_shards:
            raise ReplyMalformedError(
                ErrorCode.MALFORMED, f"{slots.shape[1]} shards came of {namespace.num_shards}"
            )
        windows = [
            namespace.groups[namespace.group_of(shard)].window_tokens
            for shard in range(namespace.num_shards)
        ]
        stop = loadable_stop(slots, windows, first_block, stop_block, geometry, self._is_divisible)
        # Not np.unique: its first call imports for tens of milliseconds.
        mine = slots[:, list(geometry.shards)]
        is_held = (mine["extent"] != 0) | (mine["generation"] != 0)
        extents = set(mine["extent"][is_held].tolist())
        table = self._link.extents
        if stop <= first_block or any(
            table.get(number, joined.epoch) is None for number in extents
        ):
            return None
        size = geometry.tokens_per_block
        first_chunk = first_block // geometry.chunk_blocks
        offer = Offer(
            lease, joined.epoch, first_chunk, slots, first_block * size, stop_block * size
        ).shorter(stop * size, geometry)
        if len(offer.slots) < len(slots):
            behind = first_chunk + len(offer.slots)
            self._link.release(lease, behind, len(slots) - len(offer.slots), all_readers=True)
        return offer

    def _end_rest(self, joined: Joined, state: RequestState) -> None:
        """What was not retrieved, as the device holds it itself, stays leased no longer.

        A request that is cancelled without a callback would keep it from eviction. It goes over
        this connection, without waiting, so that it cannot overtake a later question about the
        same request; if it cannot be sent, the request's end does it.
        """
        channel = self._channel
        if channel is None:
            return
        try:
            channel.submit(EndSession(session=joined.session, request=state.key), _END_S, joined)
            state.asked = False
        except KvkeepError:
            pass
        channel.poll(0)  # answers of earlier ones, which nobody asks for

    def _end(self, state: RequestState) -> None:
        self._link.end_request(state.key)
        state.asked = False

    def _left_s(self) -> float:
        """What the budget leaves now, seconds; may be negative."""
        return self._budget.left_s - (self._budget.now_s() - self._begin_s)

    def _call(self, joined: Joined, body: Request, kind: type[B]) -> B:
        left_s = self._left_s()
        if left_s <= 0:
            raise UnreachableError(ErrorCode.DEADLINE_EXCEEDED, "the iteration's budget is spent")
        if self._channel is None:
            self._channel = self._link.open_channel()
        reply = self._channel.call(body, left_s, joined)
        if not isinstance(reply, kind):
            raise ReplyMalformedError(
                ErrorCode.MALFORMED, f"{type(reply).__name__} came where {kind.__name__} belongs"
            )
        return reply
