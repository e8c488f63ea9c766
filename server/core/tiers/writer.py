"""What waits to be written to one tier, and what is being written.

Purpose: published chunks go to a tier parents first, in slices of the loop and in jobs of bounded
size; what is being written is pinned, so its bytes stay; what is evicted before its turn is passed
over, so a STORE never waits for a tier. Must not know: which chunks should go, and when. Runs in:
the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.core.admission import MORE, WALK_BLOCKS, Lanes, Pause, Steps
from server.core.arena import Arena
from server.core.clock import Timers
from server.core.config import SECOND_NS
from server.core.index import ABSENT, ROOT, ChunkIndex
from server.core.namespaces import Owner
from server.core.slots import HELD, Slots
from server.core.tiers.parts import MAX_KEYS, MAX_PARTS, Status
from server.core.tiers.rows import rows
from server.core.tiers.tier import Tier
from server.core.tiers.tiers import Tiers, asked

MAX_QUEUED = 1 << 16
"""Nodes that wait for one tier; then the oldest are given up."""

MAX_CLIMB = 1 << 16
"""Ancestors that are written ahead of a chunk."""

ASK_NODES = 8
"""Whether a tier has a chain already is asked from so many chunks on."""

WRITE_NODES = 32
"""Nodes of one job; that many are a slice of the loop."""

MAX_TRIES = 3
"""How often a chunk is written in vain, before it is given up."""

FIRST_PAUSE_NS, LAST_PAUSE_NS = SECOND_NS, 30 * SECOND_NS
"""Nothing is written to a tier that is full for so long; longer each time that it still is."""

Ints = NDArray[np.int64]


@dataclass
class Entry:
    """Nodes that wait, parents before children.

    Attributes:
        owner: whose.
        index: of that time; another one now means that they were cleared.
        nodes: int64[n].
        lives: int32[n], of the nodes; another one now means that a node went.
        tries: how often they were written in vain.
        taken: leading ones that were dealt with.
    """

    owner: Owner
    index: ChunkIndex
    nodes: Ints
    lives: NDArray[np.int32]
    tries: int = 0
    taken: int = 0

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of all parts of one node, at least 1."""
        sizes = map(self.owner.namespace.slot_payload_bytes, range(self.owner.num_shards))
        return max(1, sum(sizes))

    @property
    def num_left(self) -> int:
        """Nodes still to be dealt with."""
        return len(self.nodes) - self.taken

    @property
    def is_cleared(self) -> bool:
        """Whether CLEAR took them all."""
        return self.index is not self.owner.index


@dataclass(eq=False)
class Flight:
    """Nodes that are being written.

    Attributes:
        entry: what they were part of.
        nodes: int64[n], the node of each slot.
        lives: int32[n], of those nodes.
        slots: int64[n], pinned once each.
    """

    entry: Entry
    nodes: Ints
    lives: NDArray[np.int32]
    slots: Slots


class Writer:
    """One tier's.

    Args:
        tier: which.
        tiers: by whom it is asked.
        arena: slots and extents.
        lanes: long work.
        timers: pauses.
        fault: notes an error of our own.

    Attributes:
        num_waiting: nodes that wait.
        flights: what is being written.
        idle: called with an owner whose slots may have become free.
    """

    def __init__(
        self,
        tier: Tier,
        tiers: Tiers,
        arena: Arena,
        lanes: Lanes,
        timers: Timers,
        fault: Callable[[Exception], None],
    ) -> None:
        self.tier = tier
        self._tiers = tiers
        self._arena = arena
        self._table = arena.slots
        self._lanes = lanes
        self._timers = timers
        self._fault = fault
        self._queue: deque[Entry] = deque()
        self._is_running = False
        self._is_asking = False
        self._barred = 0
        self._pause_ns = FIRST_PAUSE_NS
        self._resume_ns = 0
        self.num_waiting = 0
        self.flights: set[Flight] = set()
        self.idle: Callable[[Owner], None] = lambda owner: None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written or could be; for a server that is about to end."""
        return not self.flights and not (self._queue and self.is_free)

    # --- waiting --------------------------------------------------------------------------

    def offer(self, owner: Owner, nodes: Ints, tries: int = 0) -> None:
        """Has nodes written when it is their turn, and before them what they continue.

        Args:
            owner: whose.
            nodes: int64[n], parents before children.
            tries: how often they were written in vain.
        """
        self._append(Entry(owner, owner.index, nodes, owner.index.lives(nodes), tries))
        self.pump()

    def wants(self, owner: Owner, nodes: list[int]) -> bool:
        """Has those of some nodes written that the tier lacks, if they are still there.

        Returns:
            Whether there were any.
        """
        index = owner.index
        lacking = [node for node in nodes if not self._is_saved(index, node)]
        if lacking:
            self.offer(owner, np.array(lacking, np.int64))
        return bool(lacking)

    def _append(self, entry: Entry) -> None:
        self._queue.append(entry)
        self.num_waiting += entry.num_left
        while self.num_waiting > MAX_QUEUED and len(self._queue) > 1:
            self._give_up(self._pop())

    def _pop(self) -> Entry:
        entry = self._queue.popleft()
        self.num_waiting -= entry.num_left
        return entry

    def _give_up(self, entry: Entry) -> None:
        self.tier.count("puts_dropped", entry.num_left)

    def pump(self) -> None:
        """Goes on writing, if something waits and the tier has room."""
        self._barred = 0  # whoever is at it looks at all that waits once more
        if not self._is_running and self._queue and self.is_free:
            self._is_running = True
            self._lanes.start(("demotion", self.tier.number), self._run(), self._failed)

    def _failed(self, error: Exception) -> None:
        self._is_running = False
        self._fault(error)

    @property
    def is_free(self) -> bool:
        """Whether something could be written now."""
        is_paused = self._timers.clock.now_ns < self._resume_ns
        if is_paused or self._is_asking:
            return False
        # What is next is sent at once: waiting at the tier, it might outlive a failure of what it
        # continues.
        least_bytes = self._queue[0].chunk_bytes if self._queue else 0
        return self.tier.may_put(least_bytes)

    # --- turns ----------------------------------------------------------------------------

    def _run(self) -> Steps:
        yield MORE  # whoever offers something has had its slice
        while self._queue and self.is_free and self._barred <= len(self._queue):
            entry = self._queue[0]
            if entry.is_cleared or not entry.num_left:
                self._pop()
            elif self._tiers.is_barred(self.tier, entry.owner.fingerprint):
                self._queue.rotate(-1)
                self._barred += 1
            else:
                self._barred = 0
                yield from self._advance(entry)
            yield MORE
        self._is_running = False

    def _advance(self, entry: Entry) -> Generator[Pause, None, None]:
        """Writes the next nodes of an entry, or has it wait for what they continue."""
        end = min(len(entry.nodes), entry.taken + self._most(entry))
        nodes = entry.nodes[entry.taken : end]
        nodes = nodes[entry.index.lives(nodes) == entry.lives[entry.taken : end]]
        chosen: list[int] = []
        ahead: set[int] = set()
        for node in nodes.tolist():
            parent = entry.index.parent[node]
            if self._is_saved(entry.index, node):
                continue
            if parent not in ahead and parent != ROOT and not self._is_saved(entry.index, parent):
                if chosen:
                    break  # those first
                yield from self._climb(entry, node)
                return
            chosen.append(node)
            ahead.add(node)
        else:
            self._take(entry, end)
        if chosen:
            self._write(entry, np.array(chosen, np.int64))

    def _take(self, entry: Entry, end: int) -> None:
        self.num_waiting -= end - entry.taken
        entry.taken = end

    def _most(self, entry: Entry) -> int:
        """Nodes of one job: within its bytes and parts, and one at least."""
        most = self.tier.job_bytes // entry.chunk_bytes
        return max(1, min(WRITE_NODES, most, MAX_PARTS // entry.owner.num_shards))

    def _is_saved(self, index: ChunkIndex, node: int) -> bool:
        """Whether the tier has, or is being given, all that is held of a node."""
        table, bit = self._table, self.tier.bit
        at = node * index.num_shards
        for slot in index.cell_of[at : at + index.num_shards]:
            if slot != ABSENT and not table.tiers_of[slot] & bit and table.state_of[slot] == HELD:
                return False
        return True

    def _climb(self, entry: Entry, node: int) -> Generator[Pause, None, None]:
        """Puts the ancestors that the tier lacks before an entry, whose next node needs them."""
        index, life = entry.index, entry.index.life[node]
        line: list[int] = []
        above = index.parent[node]
        while above != ROOT and not self._is_saved(index, above):
            line.append(above)
            above = index.parent[above]
            if len(line) % WALK_BLOCKS == 0:
                yield MORE
                if entry.is_cleared or index.life[node] != life:
                    return
            if len(line) >= MAX_CLIMB:
                self.tier.count("puts_dropped")
                self._take(entry, entry.taken + 1)
                return
        if line and self._queue and self._queue[0] is entry:
            nodes = np.array([*line[::-1], node], np.int64)
            ahead = Entry(entry.owner, index, nodes, index.lives(nodes))
            self._queue.appendleft(ahead)
            self.num_waiting += len(nodes)
            if len(nodes) >= ASK_NODES:
                self._ask(ahead, 0)

    def _ask(self, entry: Entry, begin: int) -> None:
        """Asks how much of a chain the tier has, so that it is not written again after a restart.

        Nothing is written meanwhile.
        """
        nodes = entry.nodes[begin : begin + MAX_KEYS]
        self._is_asking = True

        def ended(number: int | None) -> None:
            count = number or 0
            self._is_asking = False
            if not entry.is_cleared:
                lives = entry.lives[begin : begin + count]
                there = nodes[:count][entry.index.lives(nodes[:count]) == lives]
                self._note(entry.index, there)
                if count == len(nodes) and begin + count < len(entry.nodes):
                    self._ask(entry, begin + count)
            self.pump()

        keys = entry.index.keys_of(nodes).tobytes()
        self._tiers.probe(self.tier, entry.owner, keys, ended)

    def _note(self, index: ChunkIndex, nodes: Ints) -> None:
        """The tier has these: of each chunk the parts that it was asked for."""
        first, count = asked(index.full)
        cells = index.cells[nodes][:, first : first + count].ravel()
        slots = cells[cells != ABSENT]
        slots = slots[self._table.state[slots] == HELD]
        self._table.tiers[slots] |= np.uint8(self.tier.bit)

    # --- writing --------------------------------------------------------------------------

    def _write(self, entry: Entry, nodes: Ints) -> None:
        index, table = entry.index, self._table
        cells = index.cells[nodes]
        wanted = (cells != ABSENT) & (table.state[cells] == HELD)
        wanted &= (table.tiers[cells] & self.tier.bit) == 0
        places, shards = np.nonzero(wanted)
        slots = cells[places, shards].astype(np.int64)
        for begin in range(0, len(slots), MAX_PARTS):
            part = slice(begin, begin + MAX_PARTS)
            self._put(entry, nodes[places[part]], slots[part])

    def _put(self, entry: Entry, nodes: Ints, slots: Slots) -> None:
        index = entry.index
        parts = rows(
            self._arena, index.keys_of(nodes), index.parent_keys(nodes), slots, index.uses_of(nodes)
        )
        flight = Flight(entry, nodes, index.lives(nodes), slots)
        self._table.tiers[slots] |= np.uint8(self.tier.bit)
        self._table.pin(slots, 1)
        self.flights.add(flight)
        num_bytes = int(parts["length"].sum(dtype=np.int64))
        self._tiers.put(
            self.tier, entry.owner, parts, num_bytes, lambda statuses: self._ended(flight, statuses)
        )

    def under_way(self) -> Slots:
        """Slots that are being written: the tier is counted on for them before it has them."""
        return np.concatenate([np.empty(0, np.int64), *(one.slots for one in self.flights)])

    def _ended(self, flight: Flight, statuses: bytes) -> None:
        self.flights.discard(flight)
        owner = flight.entry.owner
        if any(statuses):
            self._missed(flight, np.frombuffer(statuses, np.uint8))
        else:
            self._pause_ns = FIRST_PAUSE_NS
        self._arena.unpin(owner, flight.slots)
        self.idle(owner)
        self.pump()

    def _missed(self, flight: Flight, statuses: NDArray[Any]) -> None:
        """Some of it was not written: that is tried again, at most a few times."""
        entry, bad = flight.entry, statuses != Status.OK
        self._table.tiers[flight.slots[bad]] &= np.uint8(~self.tier.bit & 0xFF)
        if (statuses == Status.NO_ROOM).any():
            self._pause()
        if entry.is_cleared:
            return
        refused = statuses == Status.OVER
        if refused.any():
            # Its tenant's quota: another try now would end as this one did.
            self.tier.count("puts_dropped", len(set(flight.nodes[refused].tolist())))
            bad &= ~refused
            if not bad.any():
                return
        nodes = list(dict.fromkeys(flight.nodes[bad].tolist()))
        lives = dict(zip(flight.nodes.tolist(), flight.lives.tolist(), strict=True))
        again = Entry(
            entry.owner,
            entry.index,
            np.array(nodes, np.int64),
            np.array([lives[node] for node in nodes], np.int32),
            entry.tries + 1,
        )
        if again.tries < MAX_TRIES:
            self._append(again)
        else:
            self._give_up(again)

    def _pause(self) -> None:
        now_ns = self._timers.clock.now_ns
        if now_ns < self._resume_ns:
            return
        self._resume_ns = now_ns + self._pause_ns
        self._timers.at(self._resume_ns, self.pump)
        self._pause_ns = min(2 * self._pause_ns, LAST_PAUSE_NS)
