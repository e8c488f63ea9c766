"""What COMMIT, or a promotion, does to chunks: from reserved and filled to held.

Purpose: check that the parent is still held and that nothing was cleared, then publish slice by
slice: index, eviction order, generations, records. Must not know: copies, tiers, deadlines, who
asked. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES
from protocol.messages import StopReason
from server.core import records
from server.core.arena import Arena
from server.core.clock import Clock
from server.core.complete import became_complete
from server.core.effects import WriteRecords
from server.core.events import EventLog
from server.core.index import ROOT
from server.core.namespaces import Owner
from server.core.outbox import Outbox
from server.core.reservations import Reservations
from server.core.slots import HELD
from server.core.stores import Filling


class Publisher:
    """Publishes chunks.

    Args:
        clock: current time.
        outbox: where effects go.
        arena: slots and extents.
        reservations: which slots are not published yet.

    Attributes:
        next_generation: of the next published slot; one counter for the whole arena.
        events: where it is noted that chunks became complete; None while nobody asks for that.
        published: called with an owner, int64[n] nodes and a shard that were just published; None
            without lower tiers.
    """

    def __init__(
        self, clock: Clock, outbox: Outbox, arena: Arena, reservations: Reservations
    ) -> None:
        self._clock = clock
        self._outbox = outbox
        self._arena = arena
        self._slots = arena.slots
        self._reservations = reservations
        self.next_generation = 1
        self.events: EventLog | None = None
        self.published: Callable[[Owner, NDArray[np.int64], int], None] | None = None

    def obstacle(self, plan: Filling, done: int) -> StopReason:
        """Why the chunk after ``done`` published ones may not be published, or NONE."""
        if plan.is_cleared:
            return StopReason.CLEARED
        index = plan.index
        parent = index.parent[self._slots.node_of[plan.slots[done]]]
        if parent != ROOT and index.full[plan.shard] and not index.holds(parent, plan.shard):
            return StopReason.MISSING_PARENT
        return StopReason.NONE

    def publish(self, plan: Filling, done: int, part: list[int]) -> None:
        """Publishes some chunks at once.

        Args:
            plan: whose; without an obstacle.
            done: chunks of it published before.
            part: slots of those that follow.
        """
        shard, owner, now_us = plan.shard, plan.owner, self._clock.now_us
        owner.used_ns = self._clock.now_ns
        slots, writer = self._slots, plan.writer
        numbers = np.array(part, dtype=np.int64)
        slots.state[numbers] = HELD
        slots.tiers[numbers] = plan.tiers
        for slot in part:
            del self._reservations.by_slot[slot]
        self._arena.accounts.reserved(plan.account, -len(part), owner.slot_bytes[shard])
        nodes = slots.node[numbers].astype(np.int64)
        self._arena.accounts.published(owner, nodes, shard)
        leaves, incomplete = plan.index.publish(nodes, shard, now_us)
        for node in leaves:
            owner.leaves.offer(node)
        for node in incomplete:
            owner.leaves.watch(node, writer, now_us)
        chunk = plan.held + done
        if self.events is not None:
            runs = became_complete(plan.index, nodes, shard, len(incomplete))
            self._note_complete(self.events, plan, chunk, runs)
        rows = records.build(
            keys=plan.keys[chunk * ID_BYTES : (chunk + len(part)) * ID_BYTES],
            parent=plan.key(chunk - 1) if chunk else plan.parent_key,
            fingerprint=owner.fingerprint,
            shard=shard,
            chunk_blocks=owner.namespace.chunk_blocks,
            payload_bytes=owner.namespace.slot_payload_bytes(shard),
            owner=writer,
            stamp_us=now_us,
            first_generation=self.next_generation,
            tenant=plan.tenant,
        )
        self.next_generation += len(part)
        slots.generation[numbers] = rows["generation"]
        extents = slots.extent[numbers]
        for extent_id, mine in slots.by_extent(numbers):
            extent = self._arena.extents[extent_id]
            extent.add_reserved(-int(mine.size))
            extent.add_held(int(mine.size))
            extent.note_use(mine.size, now_us)
            which = rows if mine.size == len(rows) else rows[extents == extent_id]
            self._outbox.add(WriteRecords(extent_id, slots.local[mine], which))
        if self.published is not None:
            self.published(owner, nodes, shard)

    def _note_complete(
        self, events: EventLog, plan: Filling, chunk: int, runs: list[tuple[int, int]]
    ) -> None:
        """Notes runs of chunks that became complete, by their places after a chunk of the plan."""
        for first, end in runs:
            at = chunk + first
            parent = plan.key(at - 1) if at else plan.parent_key
            keys = plan.keys[at * ID_BYTES : (chunk + end) * ID_BYTES]
            events.stored(plan.owner.fingerprint, keys, parent)
