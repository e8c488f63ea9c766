"""STORE, COMMIT, CANCEL: from pages to published chunks.

Purpose: reserve a slot per missing chunk, have pieces copied, answer, and publish only what COMMIT
confirms (design rule 1). Whatever ends a STORE early frees its slots only when no copy into them is
in flight (design rule 4). Must not know: sockets, how copying is done. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.ids import ExtentId
from protocol.messages import CommitReply, Done, StopReason, StoreReply
from server.core.admission import MORE, SLICE_BLOCKS, WAIT, Lanes, Steps
from server.core.arena import Arena
from server.core.clock import Clock, Timers
from server.core.config import SECOND_NS, CoreConfig
from server.core.copiers import Copiers
from server.core.copies import Piece
from server.core.namespaces import PoolState, Session
from server.core.outbox import Outbox, Ticket
from server.core.publishing import Publisher
from server.core.reservations import Reservations
from server.core.slots import Slots
from server.core.stores import Stage, StorePlan

SMALL_BLOCKS = 16
"""Requests about so many blocks begin at once, instead of in the next slice."""


class Plans:
    """All STOREs.

    Args:
        config: settings.
        clock: current time.
        timers: deadlines.
        outbox: replies and effects.
        arena: slots and extents.
        lanes: long work.
        copiers: do the copying.
        reservations: slots of STOREs.
        publisher: what COMMIT does.
        fault: notes an error of our own.

    Attributes:
        fault: notes an error of our own.
        ended: called with a session after one of its STOREs ended.
    """

    def __init__(
        self,
        config: CoreConfig,
        clock: Clock,
        timers: Timers,
        outbox: Outbox,
        arena: Arena,
        lanes: Lanes,
        copiers: Copiers,
        reservations: Reservations,
        publisher: Publisher,
        fault: Callable[[Exception], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._timers = timers
        self._outbox = outbox
        self._arena = arena
        self._slots = arena.slots
        self._lanes = lanes
        self._windows = copiers.windows
        self._reservations = reservations
        self._publisher = publisher
        self.fault = fault
        self.ended: Callable[[Session], None] = lambda session: None

    # --- beginning ------------------------------------------------------------------------

    def begin(self, plan: StorePlan) -> None:
        """Starts a checked STORE."""
        plan.session.stores[plan.store] = plan
        wait_ns = int(self._config.commit_timeout_s * SECOND_NS)
        self._outbox.answer_by(plan.ticket, wait_ns, partial(self._too_late, plan))
        self._start(plan, self._plan(plan))

    def _start(self, plan: StorePlan, steps: Steps) -> None:
        # The first slice may run before start() returns, so the failure handler cannot rely on
        # plan.task.
        plan.task = self._lanes.start(
            plan.session.session, steps, lambda error: self._failed(plan, error)
        )

    def _failed(self, plan: StorePlan, error: Exception) -> None:
        known = error if isinstance(error, KvkeepError) else None
        if known is None:
            self.fault(error)
        plan.planned = True
        self.end(plan, known or RequestError(ErrorCode.INTERNAL, "the server failed"))

    def _too_late(self, plan: StorePlan) -> None:
        self.end(plan, RequestError(ErrorCode.DEADLINE_EXCEEDED, "the STORE took too long"))

    def _plan(self, plan: StorePlan) -> Steps:
        self._reservations.begin(plan)
        if plan.num_chunks - plan.held > SMALL_BLOCKS:
            yield MORE  # decoding and checking so many was a slice of its own
        while self._wants_more(plan):
            slots = self._reservations.reserve(plan)
            if slots is not None and slots.size:
                if slots.size > SMALL_BLOCKS:
                    yield MORE  # having them copied is a burst of its own
                if plan.stage is Stage.COPYING:
                    self._queue_pieces(plan, len(plan.slots) - slots.size, slots)
            self._windows[plan.session.copier].pump()
            if not self._wants_more(plan):
                break
            yield WAIT if slots is None else MORE
        self._reservations.unlock(plan)
        plan.planned = True
        self._settle(plan)

    def _wants_more(self, plan: StorePlan) -> bool:
        if plan.stage is Stage.COPYING and plan.is_cleared:
            plan.stop = StopReason.CLEARED
        return (
            plan.stage is Stage.COPYING
            and plan.stop is StopReason.NONE
            and plan.held + len(plan.slots) < plan.num_chunks
        )

    # --- copying --------------------------------------------------------------------------

    def _queue_pieces(self, plan: StorePlan, first: int, slots: Slots) -> None:
        owner, shard = plan.owner, plan.shard
        chunk_blocks = owner.namespace.chunk_blocks
        payload_bytes = owner.namespace.slot_payload_bytes(shard)
        most = max(
            1, min(SLICE_BLOCKS // chunk_blocks, self._config.copy_piece_bytes // payload_bytes)
        )
        window = self._windows[plan.session.copier]
        extents = self._slots.extent[slots].tolist()
        begin = 0
        while begin < len(slots):
            end = begin + 1
            while end < len(slots) and end - begin < most and extents[end] == extents[begin]:
                end += 1
            at = plan.held + first + begin
            piece = Piece(
                session=plan.session.session,
                pool=plan.session.handle,
                layout=plan.session.pools[shard],
                geometry=self._arena.extents[ExtentId(extents[begin])].geometry,
                local=self._slots.local[slots[begin:end]],
                pages=plan.pages[at * chunk_blocks : (at + end - begin) * chunk_blocks],
                num_bytes=payload_bytes * (end - begin),
                wanted=partial(self._wanted, plan, first + begin),
                ended=partial(self._piece_ended, plan, first + begin),
                stranded=partial(self._piece_stranded, plan),
            )
            plan.num_pieces += 1
            if plan.session.pool_state is PoolState.OPEN:
                window.add(piece)
            else:  # its copier was lost while the STORE waited for room; the next one opens it
                piece.ended(piece, "the copier is starting again")
            begin = end

    # --- copied ---------------------------------------------------------------------------

    def _wanted(self, plan: StorePlan, first: int) -> bool:
        return plan.stage is Stage.COPYING and not plan.is_cleared and first < plan.good

    def _piece_ended(self, plan: StorePlan, first: int, piece: Piece, error: str | None) -> None:
        plan.num_pieces -= 1
        if error is not None:
            plan.good = min(plan.good, first)
            if plan.stage is Stage.COPYING:
                plan.stop = StopReason.CLEARED if plan.is_cleared else StopReason.COPY_FAILED
                if plan.task is not None and not plan.planned:
                    self._lanes.wake(plan.task)
        self._settle(plan)

    def _piece_stranded(self, plan: StorePlan, piece: Piece) -> None:
        # Its own ticket does not wait for that copier's end; a CANCEL and an UNREGISTER do, since
        # they are answered when no copy can touch the pool.
        error = RequestError(ErrorCode.COPY_FAILED, "the copier hangs")
        self._outbox.fail(plan.ticket, error)
        self.end(plan, error)

    def _settle(self, plan: StorePlan) -> None:
        if plan.num_pieces or not plan.planned:
            return
        if plan.stage is Stage.COPYING:
            self._answer(plan)
        elif plan.stage is Stage.ENDING:
            self._finish_early(plan)

    def _answer(self, plan: StorePlan) -> None:
        if plan.is_cleared:
            plan.stop, plan.good = StopReason.CLEARED, 0
        plan.stage = Stage.COPIED
        self._outbox.counters["stored_chunks"] += plan.good
        self._outbox.counters["stores_answered"] += 1
        answer = StoreReply(held=plan.held, copied=plan.good, stop=plan.stop)
        self._outbox.reply(plan.ticket, answer, is_cut=plan.stop == StopReason.COPY_FAILED)
        if not plan.good:
            self._drop(plan, None)
            return
        due_ns = self._clock.now_ns + int(self._config.commit_timeout_s * SECOND_NS)
        plan.timer = self._timers.at(due_ns, partial(self._too_late, plan))
        if plan.good < len(plan.slots):
            tail, plan.slots = plan.slots[plan.good :], plan.slots[: plan.good]
            self._start_freeing(plan, tail)

    # --- ending early ---------------------------------------------------------------------

    def end(self, plan: StorePlan, error: KvkeepError) -> None:
        """Ends a STORE that is not being committed; its slots go when no copy flies.

        Args:
            plan: which.
            error: answer to the STORE if that is still owed.
        """
        if plan.stage in (Stage.ENDING, Stage.COMMITTING):
            return
        plan.stage, plan.error = Stage.ENDING, error
        self._timers.cancel(plan.timer)
        if plan.task is not None and not plan.planned:
            self._lanes.wake(plan.task)
        self._windows[plan.session.copier].drop_unwanted(plan.session.session)
        if plan.num_pieces == 0 and plan.planned and plan.store in plan.session.stores:
            self._finish_early(plan)

    def _finish_early(self, plan: StorePlan) -> None:
        error = plan.error or RequestError(ErrorCode.INTERNAL, "the STORE ended")
        self._drop(plan, error)

    def _drop(self, plan: StorePlan, error: KvkeepError | None) -> None:
        """Forgets a STORE none of whose copies is in flight, and frees its slots in slices."""
        if plan.session.stores.get(plan.store) is not plan:
            return
        plan.stage = Stage.ENDING
        self._timers.cancel(plan.timer)
        self._reservations.unlock(plan)
        # After a fault in the middle of a COMMIT some of them are published already; those are
        # left out while the others are freed.
        slots, plan.slots = plan.slots, []
        if error is not None:
            self._outbox.fail(plan.ticket, error)
        del plan.session.stores[plan.store]
        for ticket in plan.cancels:
            self._outbox.reply(ticket, Done())
        plan.cancels.clear()
        self._start_freeing(plan, slots)
        self.ended(plan.session)

    def _start_freeing(self, plan: StorePlan, slots: list[int]) -> None:
        if slots:
            self._lanes.start(
                plan.session.session, self._reservations.free(plan, slots), self.fault
            )

    def cancel(self, plan: StorePlan, ticket: Ticket) -> None:
        """CANCEL: answered when no copy of the STORE can touch the pool any more."""
        plan.cancels.append(ticket)
        self.end(plan, RequestError(ErrorCode.UNKNOWN_STORE, "the STORE was cancelled"))

    # --- committing -----------------------------------------------------------------------

    def commit(self, plan: StorePlan, count: int, ticket: Ticket) -> None:
        """COMMIT of a copied STORE.

        Args:
            plan: COPIED.
            count: leading copied chunks to publish, at most ``plan.good``.
            ticket: its reply.
        """
        self._timers.cancel(plan.timer)
        plan.stage = Stage.COMMITTING

        def failed(error: Exception) -> None:
            self.fault(error)
            self._outbox.fail(ticket, RequestError(ErrorCode.INTERNAL, "the server failed"))
            self._drop(plan, None)

        self._lanes.start(plan.session.session, self._commit(plan, count, ticket), failed)

    def _commit(self, plan: StorePlan, count: int, ticket: Ticket) -> Steps:
        done, stop = 0, StopReason.NONE
        if count > SMALL_BLOCKS:
            yield MORE
        while done < count:
            stop = self._publisher.obstacle(plan, done)
            if stop is not StopReason.NONE:
                break
            part = plan.slots[done : min(count, done + SLICE_BLOCKS)]
            self._publisher.publish(plan, done, part)
            done += len(part)
            if count > SMALL_BLOCKS:
                yield MORE  # after the last ones too: answering is not part of their burst
        self._outbox.counters["published_chunks"] += done
        self._outbox.reply(ticket, CommitReply(published=done, stop=stop))
        plan.slots = plan.slots[done:]
        self._drop(plan, None)
