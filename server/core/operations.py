"""Operators' requests: CLEAR, DELETE, INSPECT, PIN, UNPIN.

Purpose: CLEAR replaces a namespace's index at once and sweeps its slots in slices; DELETE takes
subtrees away leaf by leaf. Slots that someone reads keep their bytes until the reader ends; a STORE
in flight over either commits nothing (P10). Must not know: sockets. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protocol.errors import ErrorCode, RequestError
from protocol.ids import ID_BYTES, Fingerprint
from protocol.messages import ChunkCountReply, ForgottenReply
from server.core.admission import MORE, SLICE_BLOCKS, Lanes, Steps
from server.core.arena import Arena
from server.core.clock import Timers
from server.core.config import SECOND_NS, CoreConfig
from server.core.departures import Departures
from server.core.effects import TierId, VoidRecords
from server.core.events import EventLog
from server.core.extents import Extent
from server.core.index import ABSENT, ChunkIndex
from server.core.lookups import Match
from server.core.namespaces import Owner, peel
from server.core.outbox import Outbox, Ticket
from server.core.publishing import Publisher
from server.core.reservations import Reservations
from server.core.roster import Roster
from server.core.saltdeletion import SaltDeletion
from server.core.slots import FREE, HELD, NO_NODE, RESERVED, ZOMBIE
from server.core.tiers.forgetting import Forgetting
from server.core.tiers.unknown import Unknown

SWEEP_SLOTS = 4096
"""Slots looked at in one slice of CLEAR."""

LANE = "operations"


@dataclass
class PinnedPrefix:
    """One PIN.

    Attributes:
        owner: the namespace.
        index: its index at that time.
        node: deepest pinned node, locked.
        life: of that node.
        count: chunks pinned.
        timer: its end.
    """

    owner: Owner
    index: ChunkIndex
    node: int
    life: int
    count: int
    timer: int = 0


class Operations:
    """Operators' requests.

    Args:
        config: settings.
        timers: ends of pins.
        outbox: replies and effects.
        arena: slots and extents.
        reservations: slots of STOREs under way.
        publisher: knows the newest generation.
        roster: namespaces.
        departures: gives back extents that became empty.
        lanes: long work.
        forgetting: has lower tiers forget the same.
        unknown: and what they have besides.
        fault: notes an error of our own.

    Attributes:
        pins: by namespace and last key.
        salts: deletes all of a salt.
        events: where it is noted that a namespace was cleared; None while nobody asks for that.
    """

    def __init__(
        self,
        config: CoreConfig,
        timers: Timers,
        outbox: Outbox,
        arena: Arena,
        reservations: Reservations,
        publisher: Publisher,
        roster: Roster,
        departures: Departures,
        lanes: Lanes,
        forgetting: Forgetting,
        unknown: Unknown,
        fault: Callable[[Exception], None],
    ) -> None:
        self._config = config
        self._timers = timers
        self._outbox = outbox
        self._arena = arena
        self._slots = arena.slots
        self._reservations = reservations
        self._publisher = publisher
        self._fault = fault
        self._roster = roster
        self._departures = departures
        self._lanes = lanes
        self._forgetting = forgetting
        self._unknown = unknown
        self.events: EventLog | None = None
        self.pins: dict[tuple[Fingerprint, bytes], PinnedPrefix] = {}
        self.salts = SaltDeletion(
            outbox, arena, roster, departures, lanes, forgetting, self._drop, fault
        )

    def owner(self, name: bytes) -> Owner:
        """The namespace of a fingerprint.

        Raises:
            RequestError: UNKNOWN_NAMESPACE.
        """
        owner = self._roster.owners.get(Fingerprint(name))
        if owner is None:
            raise RequestError(
                ErrorCode.UNKNOWN_NAMESPACE, f"no namespace {name.hex()} is held here"
            )
        return owner

    def _start(self, ticket: Ticket, steps: Steps) -> None:
        def failed(error: Exception) -> None:
            self._fault(error)
            self._outbox.fail(ticket, RequestError(ErrorCode.INTERNAL, "the server failed"))

        self._lanes.start(LANE, steps, failed)

    # --- CLEAR ----------------------------------------------------------------------------

    def clear(self, owners: list[Owner], ticket: Ticket, is_all: bool = False) -> None:
        """Forgets all chunks of some namespaces.

        Answered when their records are void, and tiers have forgotten or that takes too long.

        Args:
            owners: which.
            ticket: its reply.
            is_all: tiers forget whatever else they have, too.
        """
        num_chunks = sum(map(self._empty, owners))
        self._outbox.counters["cleared_chunks"] += num_chunks
        sweep = self._sweep_all(owners, self._extents(owners))
        self._start(ticket, self._clear(owners, sweep, num_chunks, ticket, is_all))

    def retire(self, owner: Owner) -> int:
        """Forgets all chunks of a namespace as CLEAR does, though nobody waits for an answer.

        Returns:
            How many were in L1.
        """
        num_chunks = self._empty(owner)
        self._lanes.start(LANE, self._sweep_all([owner], self._extents([owner])), self._fault)
        return num_chunks

    def _empty(self, owner: Owner) -> int:
        """From now on nothing of it is found; returns how many chunks there were."""
        old = owner.index
        num_chunks = len(old)
        owner.cleared_generation = self._publisher.next_generation - 1
        self._roster.renew_index(owner)
        self._arena.accounts.cleared(owner)
        if self.events is not None:
            self.events.cleared(owner.fingerprint)
        self._forgetting.clear(owner)
        self._lanes.start(LANE, old.bury(), self._fault)
        return num_chunks

    def _extents(self, owners: list[Owner]) -> list[tuple[Owner, Extent]]:
        return [(one, extent) for one in owners for extents in one.extents for extent in extents]

    def _clear(
        self, owners: list[Owner], sweep: Steps, num_chunks: int, ticket: Ticket, is_all: bool
    ) -> Steps:
        yield from sweep
        names = [owner.fingerprint for owner in owners]
        if not is_all:
            self._reply_forgotten(ticket, num_chunks, names)
            return

        def found(others: list[Fingerprint], short: frozenset[TierId]) -> None:
            self._reply_forgotten(ticket, num_chunks, names + others, short)

        self._unknown.clear(set(names), ticket.deadline_ns, found)

    def _sweep_all(self, owners: list[Owner], swept: list[tuple[Owner, Extent]]) -> Steps:
        for owner, extent in swept:
            end = extent.base + extent.geometry.num_slots
            for begin in range(extent.base, end, SWEEP_SLOTS):
                if self._arena.extents.get(extent.extent) is not extent:
                    break
                self._sweep(owner, extent, begin, min(end, begin + SWEEP_SLOTS))
                yield MORE
        for owner in owners:
            self._departures.shrink(owner)

    def clear_below(self, name: Fingerprint, ticket: Ticket) -> None:
        """Has lower tiers forget a namespace that has no chunks and no engines here.

        Raises:
            RequestError: BUSY while they have too many to forget.
        """
        if not self._forgetting.has_place(name):
            raise RequestError(
                ErrorCode.BUSY, "the tiers have not forgotten what they were told before"
            )
        self._forgetting.clear_name(name)
        self._reply_forgotten(ticket, 0, [name])

    def _reply_forgotten(
        self,
        ticket: Ticket,
        num_chunks: int,
        names: list[Fingerprint],
        short: frozenset[TierId] = frozenset(),
    ) -> None:
        def over(num_tiers: int) -> None:
            body = ForgottenReply(chunks=num_chunks, tiers_pending=num_tiers)
            self._outbox.reply(ticket, body)

        self._forgetting.wait(names, ticket.deadline_ns, over, short)

    def _sweep(self, owner: Owner, extent: Extent, begin: int, end: int) -> None:
        slots = self._slots
        old = (slots.state[begin:end] == HELD) & (
            slots.generation[begin:end] <= owner.cleared_generation
        )
        numbers = begin + np.flatnonzero(old)
        if not numbers.size:
            return
        read = slots.pins[numbers] > 0
        slots.node[numbers] = NO_NODE
        slots.state[numbers] = np.where(read, ZOMBIE, FREE)
        extent.add_held(-int(numbers.size))
        self._outbox.add(VoidRecords(extent.extent, slots.local[numbers]))
        extent.free += numbers[~read].tolist()

    # --- DELETE ---------------------------------------------------------------------------

    def delete(self, owner: Owner, keys: bytes, ticket: Ticket) -> None:
        """Forgets chunks and what continues them; answered as CLEAR is."""
        self._start(ticket, self._delete(owner, keys, ticket))

    def _delete(self, owner: Owner, keys: bytes, ticket: Ticket) -> Steps:
        num_chunks, forgotten = 0, bytearray()

        def drop(leaf: int) -> bool:
            nonlocal num_chunks
            num_chunks += 1
            if self._forgetting.is_needed:
                forgotten.extend(owner.index.key(leaf))
            self._drop(owner, leaf)
            return True

        if self._forgetting.is_needed:
            self._forgetting.delete(owner, keys)  # what L1 does not hold may be below
        for number, at in enumerate(range(0, len(keys), ID_BYTES)):
            node = owner.index.find(keys[at : at + ID_BYTES])
            if node != ABSENT:
                for pause in peel(owner, node, drop):
                    self._arena.void_forgotten()
                    yield pause
            if number % SLICE_BLOCKS == SLICE_BLOCKS - 1:
                self._arena.void_forgotten()
                yield MORE
        self._arena.void_forgotten()
        self._forgetting.delete(owner, bytes(forgotten))
        self._departures.shrink(owner)
        self._outbox.counters["deleted_chunks"] += num_chunks
        self._reply_forgotten(ticket, num_chunks, [owner.fingerprint])

    def _drop(self, owner: Owner, leaf: int) -> None:
        index = owner.index
        for shard in range(index.num_shards):
            slot = index.cell(leaf, shard)
            if slot != ABSENT and self._slots.state_of[slot] == RESERVED:
                self._reservations.detach(slot)
        self._arena.drop_leaf(owner, leaf)

    # --- PIN, UNPIN ----------------------------------------------------------------------

    def pin(
        self, owner: Owner, keys: bytes, match: Match, ttl_s: int, now_ns: int
    ) -> ChunkCountReply:
        """Locks the deepest complete chunk of a prefix for a time.

        Args:
            owner: the namespace.
            keys: 16 bytes per chunk.
            match: what of them is complete now.
            ttl_s: how long.
            now_ns: current time.

        Raises:
            RequestError: LIMIT_EXCEEDED.
        """
        self.unpin(owner, keys)
        count, node = match.count, match.node
        if not count:
            return ChunkCountReply(chunks=0)
        if len(self.pins) >= self._config.max_pins:
            raise RequestError(
                ErrorCode.LIMIT_EXCEEDED, f"at most {self._config.max_pins} prefixes are pinned"
            )
        owner.index.locks[node] += 1
        entry = PinnedPrefix(owner, owner.index, node, owner.index.life[node], count)
        self.pins[owner.fingerprint, keys[-ID_BYTES:]] = entry
        last = keys[-ID_BYTES:]
        entry.timer = self._timers.at(now_ns + ttl_s * SECOND_NS, lambda: self._over(owner, last))
        return ChunkCountReply(chunks=count)

    def _over(self, owner: Owner, last: bytes) -> None:
        self.unpin(owner, last)

    def unpin(self, owner: Owner, keys: bytes) -> ChunkCountReply:
        """Takes a PIN of the same prefix back."""
        entry = self.pins.pop((owner.fingerprint, keys[-ID_BYTES:]), None)
        if entry is None:
            return ChunkCountReply(chunks=0)
        self._timers.cancel(entry.timer)
        index = entry.index
        if index is entry.owner.index and index.life[entry.node] == entry.life:
            index.locks[entry.node] -= 1
            entry.owner.leaves.offer(entry.node)
        return ChunkCountReply(chunks=entry.count)
