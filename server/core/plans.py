"""STORE, COMMIT, CANCEL: from pages to published chunks.

Purpose: reserve a slot per missing chunk, have pieces copied, answer, and publish only what COMMIT
confirms (design rule 1). Whatever ends a STORE early frees its slots only when no copy into them is
in flight (design rule 4). Must not know: sockets, how copying is done. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.ids import ID_BYTES, ExtentId
from protocol.messages import CommitReply, Done, StopReason, StoreReply
from server.core import records
from server.core.admission import MORE, SLICE_BLOCKS, WAIT, Lanes, Pause, Steps
from server.core.arena import Arena
from server.core.clock import Clock, Timers
from server.core.config import SECOND_NS, CoreConfig
from server.core.copies import CopyWindow, Piece
from server.core.effects import VoidRecords, WriteRecords
from server.core.index import ABSENT, ROOT
from server.core.namespaces import Session
from server.core.outbox import Outbox, Ticket
from server.core.slots import HELD, NO_NODE
from server.core.stores import Stage, StorePlan

EVICT_BLOCKS = 32
"""Leaves evicted in one slice of a STORE."""


class Plans:
    """All STOREs.

    Args:
        config: settings.
        clock: current time.
        timers: deadlines.
        outbox: replies and effects.
        arena: slots and extents.
        lanes: long work.
        window: of the host copier.
        fault: notes an error of our own.

    Attributes:
        fault: notes an error of our own.
        by_slot: the plan that reserved a slot.
        next_generation: of the next published slot.
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
        window: CopyWindow,
        fault: Callable[[Exception], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._timers = timers
        self._outbox = outbox
        self._arena = arena
        self._slots = arena.slots
        self._lanes = lanes
        self._window = window
        self.fault = fault
        self.by_slot: dict[int, StorePlan] = {}
        self.next_generation = 1
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
        self._find_held(plan)
        if plan.stop is StopReason.NONE and plan.tip != ROOT:
            plan.anchor, plan.anchor_life = plan.tip, plan.index.life[plan.tip]
            plan.index.locks[plan.anchor] += 1
        while self._wants_more(plan):
            pause = self._reserve(plan)
            self._window.pump()
            if not self._wants_more(plan):
                break
            yield pause
        self._unlock(plan)
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

    def _unlock(self, plan: StorePlan) -> None:
        index, node = plan.index, plan.anchor
        lives = index is plan.owner.index and index.life[node] == plan.anchor_life
        plan.anchor = ABSENT
        if node == ABSENT:
            return
        if not lives:
            plan.cleared = True
        else:
            plan.index.locks[node] -= 1
            plan.owner.leaves.offer(node)

    def _find_held(self, plan: StorePlan) -> None:
        index, shard = plan.index, plan.shard
        if plan.start:
            plan.tip = index.find(plan.parent_key)
            if plan.tip == ABSENT or index.depth[plan.tip] != plan.start - 1:
                plan.stop = StopReason.MISSING_PARENT
                return
            if index.full[shard] and not index.holds(plan.tip, shard):
                plan.stop = StopReason.MISSING_PARENT
                return
        if index.full[shard]:
            plan.held, deepest = index.held_prefix(plan.keys, plan.start, shard)
        else:
            plan.held, deepest = self._window_prefix(plan)
        if plan.held:
            plan.tip = deepest
            index.touch(deepest, self._clock.now_us)

    def _window_prefix(self, plan: StorePlan) -> tuple[int, int]:
        # A window group's cells are not prefix-closed; a few probes suffice, since what is held
        # and not counted here only ends the STORE early.
        count, deepest = 0, ABSENT
        while count < min(plan.num_chunks, SLICE_BLOCKS):
            node = plan.index.find(plan.key(count))
            if node == ABSENT or not plan.index.holds(node, plan.shard):
                break
            count, deepest = count + 1, node
        return count, deepest

    # --- reserving ------------------------------------------------------------------------

    def _reserve(self, plan: StorePlan) -> Pause:
        """Reserves up to one slice; says whether to go on or to wait."""
        first = plan.held + len(plan.slots)
        count = self._reservable(plan, plan.some_keys(first, SLICE_BLOCKS))
        if count == 0:
            return MORE
        slots = self._room(plan, count)
        if not slots:
            return WAIT if plan.stop is StopReason.NONE else MORE
        numbers = np.array(slots, dtype=np.int64)
        self._void(numbers)
        nodes = self._nodes(plan, plan.some_keys(first, len(slots)))
        plan.index.fill(nodes, plan.shard, numbers)
        self._slots.node[numbers] = nodes
        self.by_slot.update(dict.fromkeys(slots, plan))
        plan.tip = int(nodes[-1])
        plan.slots += slots
        plan.good = len(plan.slots)
        self._queue_pieces(plan, first - plan.held, numbers)
        return MORE

    def _nodes(self, plan: StorePlan, keys: list[bytes]) -> NDArray[np.int64]:
        """Nodes for checked keys: those there are, then new ones."""
        found = plan.index.find_all(keys)
        known = found.index(ABSENT) if ABSENT in found else len(found)
        nodes = np.array(found, dtype=np.int64)
        if known < len(found):
            parent = found[known - 1] if known else plan.tip
            nodes[known:] = plan.index.add_chain(keys[known:], parent, self._clock.now_us)
        return nodes

    def _reservable(self, plan: StorePlan, keys: list[bytes]) -> int:
        """How many of the next chunks may be reserved; sets ``stop`` when none may."""
        index, shard, tip = plan.index, plan.shard, plan.tip
        absent: set[bytes] = set()
        for offset, (key, node) in enumerate(zip(keys, index.find_all(keys), strict=True)):
            if node == ABSENT and key not in absent:
                absent.add(key)
                continue
            stop = StopReason.NONE
            # After an absent chunk all further ones are absent, or belong to another chain.
            if absent or index.parent[node] != tip:
                stop = StopReason.MISSING_PARENT
            elif index.cell(node, shard) != ABSENT:
                stop = StopReason.BUSY
            if stop is not StopReason.NONE:
                if offset == 0:
                    plan.stop = stop
                return offset
            tip = node
        return len(keys)

    def _room(self, plan: StorePlan, count: int) -> list[int]:
        owner, shard, arena = plan.owner, plan.shard, self._arena
        slots = arena.allocate(owner, shard, count)
        if len(slots) == count:
            arena.look_ahead(owner, shard)
            return slots
        waiter = self._waker(plan)
        if arena.can_grow(owner, shard) and arena.demand(owner, shard, None if slots else waiter):
            return slots
        arena.press(owner, shard)
        left = EVICT_BLOCKS
        while len(slots) < count and left > 0:
            gone = arena.evict(owner, min(left, count - len(slots)))
            if not gone:
                break
            left -= gone
            slots += arena.allocate(owner, shard, count - len(slots))
        if not slots and not arena.demand(owner, shard, waiter, force=True):
            plan.stop = StopReason.NO_ROOM
        return slots

    def _waker(self, plan: StorePlan) -> Callable[[bool], None]:
        def wake(came: bool) -> None:
            if not came and plan.stop is StopReason.NONE:
                plan.stop = StopReason.NO_ROOM
            if plan.task is not None and not plan.planned:
                self._lanes.wake(plan.task)

        return wake

    def _void(self, numbers: NDArray[np.int64]) -> None:
        dirty = numbers[self._slots.generation[numbers] != 0]
        if dirty.size:
            self._slots.generation[dirty] = 0
            for extent, part in self._by_extent(dirty):
                self._outbox.add(VoidRecords(extent, self._slots.local[part], reused=True))

    def _by_extent(self, slots: NDArray[np.int64]) -> list[tuple[ExtentId, NDArray[np.int64]]]:
        extents = self._slots.extent[slots]
        if int(extents[0]) == int(extents[-1]) and bool((extents == extents[0]).all()):
            return [(ExtentId(int(extents[0])), slots)]
        # Not np.unique: its first call imports for 20 ms, in the loop.
        return [(ExtentId(one), slots[extents == one]) for one in sorted(set(extents.tolist()))]

    def _queue_pieces(self, plan: StorePlan, first: int, slots: NDArray[np.int64]) -> None:
        owner, shard = plan.owner, plan.shard
        chunk_blocks = owner.namespace.chunk_blocks
        payload_bytes = owner.namespace.slot_payload_bytes(shard)
        most = max(
            1, min(SLICE_BLOCKS // chunk_blocks, self._config.copy_piece_bytes // payload_bytes)
        )
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
            )
            plan.num_pieces += 1
            self._window.add(piece)
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
        self._outbox.reply(
            plan.ticket, StoreReply(held=plan.held, copied=plan.good, stop=plan.stop)
        )
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
        self._window.drop_unwanted(plan.session.session)
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
        self._unlock(plan)
        # After a fault in the middle of a COMMIT some of them are published already.
        slots, plan.slots = [slot for slot in plan.slots if slot in self.by_slot], []
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
            self._lanes.start(plan.session.session, self._free(plan, slots), self.fault)

    def _free(self, plan: StorePlan, slots: list[int]) -> Steps:
        # Deepest first, so that no reserved chunk is ever without its parent.
        for number, slot in enumerate(reversed(slots)):
            node = self._slots.node_of[slot]
            if node != NO_NODE and plan.index is plan.owner.index:
                plan.index.vacate(node, plan.shard, was_held=False)
                self._arena.prune(plan.owner, node)
            del self.by_slot[slot]
            self._arena.abandon(slot)
            if number % SLICE_BLOCKS == SLICE_BLOCKS - 1:
                yield MORE

    def detach(self, slot: int) -> None:
        """DELETE reached a reserved slot: its STORE commits nothing."""
        plan = self.by_slot[slot]
        node = self._slots.node_of[slot]
        self._slots.node_of[slot] = NO_NODE
        plan.index.vacate(node, plan.shard, was_held=False)
        self._unlock(plan)
        plan.cleared = True

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
        while done < count:
            stop = self._obstacle(plan, done)
            if stop is not StopReason.NONE:
                break
            part = plan.slots[done : min(count, done + SLICE_BLOCKS)]
            self._publish(plan, done, part)
            done += len(part)
            if done < count:
                yield MORE
        self._outbox.counters["published_chunks"] += done
        self._outbox.reply(ticket, CommitReply(published=done, stop=stop))
        plan.slots = plan.slots[done:]
        self._drop(plan, None)

    def _obstacle(self, plan: StorePlan, done: int) -> StopReason:
        if plan.is_cleared:
            return StopReason.CLEARED
        index = plan.index
        parent = index.parent[self._slots.node_of[plan.slots[done]]]
        if parent != ROOT and index.full[plan.shard] and not index.holds(parent, plan.shard):
            return StopReason.MISSING_PARENT
        return StopReason.NONE

    def _publish(self, plan: StorePlan, done: int, part: list[int]) -> None:
        shard, owner, now_us = plan.shard, plan.owner, self._clock.now_us
        slots, instance = self._slots, plan.session.instance.instance
        numbers = np.array(part, dtype=np.int64)
        slots.state[numbers] = HELD
        for slot in part:
            del self.by_slot[slot]
        leaves, incomplete = plan.index.publish(slots.node[numbers].astype(np.int64), shard, now_us)
        for node in leaves:
            owner.leaves.offer(node)
        for node in incomplete:
            owner.leaves.watch(node, instance, now_us)
        chunk = plan.held + done
        rows = records.build(
            keys=plan.keys[chunk * ID_BYTES : (chunk + len(part)) * ID_BYTES],
            parent=plan.key(chunk - 1) if chunk else plan.parent_key,
            fingerprint=owner.fingerprint,
            shard=shard,
            chunk_blocks=owner.namespace.chunk_blocks,
            payload_bytes=owner.namespace.slot_payload_bytes(shard),
            owner=instance,
            stamp_us=now_us,
            first_generation=self.next_generation,
        )
        self.next_generation += len(part)
        slots.generation[numbers] = rows["generation"]
        extents = slots.extent[numbers]
        for extent_id, mine in self._by_extent(numbers):
            extent = self._arena.extents[extent_id]
            extent.num_reserved -= mine.size
            extent.num_held += mine.size
            extent.note_use(mine.size, now_us)
            self._outbox.add(WriteRecords(extent_id, slots.local[mine], rows[extents == extent_id]))
