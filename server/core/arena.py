"""The arena's slots: taking free ones, evicting, forgetting, giving back.

Purpose: hand out slots of (owner, shard) and let go of what the index drops or nobody reads any
more. Must not know: files, the budget, leases, messages. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from protocol.ids import ExtentId
from server.core.accounts import COMMON, Accounts
from server.core.clock import Clock
from server.core.complete import complete_of, is_complete
from server.core.effects import VoidRecords
from server.core.events import EventLog
from server.core.eviction import PARKED
from server.core.extents import Extent, Phase
from server.core.index import ABSENT, ROOT
from server.core.namespaces import Owner
from server.core.outbox import Outbox
from server.core.slots import FREE, HELD, NO_NODE, RESERVED, ZOMBIE, Slots, SlotTable
from server.core.tenantleaves import TenantLeaves, Whose

EVICT_COST, LINE_COST, SHORT_LINE = 96, 6, 6
"""What one call of ``evict`` may cost, counted in chunks; what beginning a line costs; up to which
length a line is dropped node by node."""


class Arena:
    """All extents and their slots.

    Args:
        clock: current time.
        outbox: where counters are.
        slots: state of every slot.
        accounts: what salts with a quota hold.

    Attributes:
        extents: by id.
        slots: state of every slot.
        accounts: told what is dropped, and by others what is published.
        events: where it is noted that complete chunks went; None while nobody asks for that.
        evicted: called with an owner, and with the nodes and the slots of chunks that made room
            for others, before anything else comes to their place.
    """

    def __init__(self, clock: Clock, outbox: Outbox, slots: SlotTable, accounts: Accounts) -> None:
        self.accounts = accounts
        self._clock = clock
        self._outbox = outbox
        self.slots = slots
        self.extents: dict[ExtentId, Extent] = {}
        self.events: EventLog | None = None
        self._forgotten: list[int] = []
        self._gone: list[int] = []
        self.evicted: Callable[[Owner, list[int], list[int]], None] = lambda owner, nodes, slots: (
            None
        )

    def allocate(self, owner: Owner, shard: int, count: int) -> list[int]:
        """Takes free slots, without evicting.

        Args:
            owner: whose.
            shard: for which shard.
            count: wanted.

        Returns:
            At most ``count`` slot numbers, now RESERVED, ascending where possible.
        """
        taken: list[int] = []
        for extent in owner.extents[shard]:
            if extent.phase is not Phase.LIVE or extent.sealed or not extent.free:
                continue
            part = extent.free[: -(count - len(taken)) - 1 : -1]
            del extent.free[len(extent.free) - len(part) :]
            extent.add_reserved(len(part))
            self.slots.state[part] = RESERVED
            taken += part
            if len(taken) == count:
                break
        return taken

    def evict(
        self, owner: Owner, count: int, account: int = COMMON, whose: Whose = Whose.ANYONES
    ) -> int:
        """Evicts leaves of an owner, best first.

        Args:
            owner: whose.
            count: at most so many; fewer when they are leaves of many chains, so that one call
                costs about the same whatever the shape of the index.
            account: whose STORE or promotion needs the room.
            whose: which leaves may go; without quotas of salts all may.

        Returns:
            How many went; 0 only when nothing can go.
        """
        done = cost = incomplete = 0
        nodes: list[int] = []
        shared = owner.leaves if isinstance(owner.leaves, TenantLeaves) else None
        if shared is not None:
            shared.aim(account, whose)
        elif whose is Whose.OWN and account != COMMON:
            return 0
        while done < count and cost < EVICT_COST:
            leaf, stamp = owner.leaves.take(
                self._clock.now_us, lambda node: self.evictable(owner, node)
            )
            if leaf == ABSENT:
                break
            line = owner.index.only_line(leaf, stamp, count - done)
            if shared is not None:
                line = shared.within(line)
            gone = (
                self._drop_line(owner, line) if len(line) > SHORT_LINE else self._drop(owner, line)
            )
            nodes += line[:gone]
            done += gone
            incomplete += gone if stamp < 0 else 0  # it had no turn to wait for
            cost += gone + LINE_COST
        self._outbox.counters["evicted_chunks"] += done
        self._outbox.counters["evicted_incomplete_chunks"] += incomplete
        self.tell_evicted(owner, nodes)
        self.void_forgotten()
        return done

    def count_reclaimed(self, num_chunks: int) -> None:
        """Counts chunks that left with the extent that another namespace is given."""
        self._outbox.counters["reclaimed_chunks"] += num_chunks

    def tell_evicted(self, owner: Owner, nodes: list[int]) -> None:
        """Tells which chunks were dropped for room; before ``void_forgotten``."""
        gone, self._gone = self._gone + self._forgotten, []
        if nodes:
            self.evicted(owner, nodes, gone)

    def _drop(self, owner: Owner, line: list[int]) -> int:
        """The same as ``_drop_line`` node by node, which is quicker for a few."""
        lives = [owner.index.life[node] for node in line]
        for number, node in enumerate(line):
            # One that only windows' parts justified, which are gone, went with its last child.
            if number and owner.index.life[node] != lives[number]:
                return number
            if number and not self.evictable(owner, node):
                return number
            self.drop_leaf(owner, node)
        return len(line)

    def _drop_line(self, owner: Owner, line: list[int]) -> int:
        """Evicts a leaf and those of its ancestors, in order, whose slots nobody uses."""
        index, table = owner.index, self.slots
        nodes = np.array(line, dtype=np.int64)
        cells = index.cells[nodes]
        named = cells != ABSENT
        used = (table.state[cells] != HELD) | (table.pins[cells] != 0) | (table.sealed[cells] != 0)
        busy = named & used
        if busy.any():
            count = int(busy.any(axis=1).argmax())
            line, cells, named = line[:count], cells[:count], named[:count]
        self.accounts.dropped_line(owner, nodes[: len(line)], named)
        if self.events is not None:
            self._note_gone(self.events, owner, nodes[: len(line)])
        freed = cells[named].astype(np.int64)
        table.state[freed] = FREE
        table.node[freed] = NO_NODE
        self._gone += freed.tolist()
        for number, mine in table.by_extent(freed):
            extent = self.extents[number]
            extent.add_held(-int(mine.size))
            extent.free += mine.tolist()
            self._outbox.add(VoidRecords(number, table.local[mine]))
        parent = index.remove_line(line)
        if parent != ROOT:
            self.prune(owner, parent)
        return len(line)

    def _note_gone(self, events: EventLog, owner: Owner, nodes: Slots) -> None:
        for key in owner.index.keys_of(nodes[complete_of(owner.index, nodes)]).tolist():
            events.removed(owner.fingerprint, key)

    def evictable(self, owner: Owner, node: int) -> bool:
        """Whether a node is a leaf that nothing holds, and whose slots may be used again."""
        index = owner.index
        if index.first_child[node] != ABSENT or index.locks[node]:
            return False
        at, slots = node * index.num_shards, self.slots
        for shard in range(index.num_shards):
            slot = index.cell_of[at + shard]
            if slot == ABSENT:
                continue
            if slots.pins_of[slot] or slots.state_of[slot] != HELD or slots.sealed_of[slot]:
                return False
        return True

    def drop_leaf(self, owner: Owner, node: int) -> None:
        """Forgets a leaf: its slots become free, or forgotten while they are read.

        The caller calls ``void_forgotten`` before the slice ends.

        Args:
            owner: whose.
            node: no child, no reserved cell.
        """
        index = owner.index
        if self.events is not None and is_complete(index, node):
            self.events.removed(owner.fingerprint, index.key(node))
        for shard in range(index.num_shards):
            slot = index.cell(node, shard)
            if slot != ABSENT:
                self.accounts.dropped(owner, node, shard)
                index.vacate(node, shard, was_held=True)
                self.forget(slot)
        self.prune(owner, node)

    def prune(self, owner: Owner, node: int) -> None:
        """Removes a node, and then its ancestors, as far as nothing justifies them.

        Args:
            owner: whose.
            node: where to begin.
        """
        index = owner.index
        while node != ROOT and index.is_empty(node):
            node = index.remove(node)
        if node != ROOT:
            owner.leaves.offer(node)

    def forget(self, slot: int) -> None:
        """Lets a published slot go that the index does not name any more.

        The caller calls ``void_forgotten`` before the slice ends.
        """
        self._forgotten.append(slot)
        slots, extent = self.slots, self.extents[ExtentId(self.slots.extent_of[slot])]
        extent.add_held(-1)
        slots.node_of[slot] = NO_NODE
        if slots.pins_of[slot]:
            slots.state_of[slot] = ZOMBIE
        else:
            slots.state_of[slot] = FREE
            extent.free.append(slot)

    def void_forgotten(self) -> None:
        """Has the records of forgotten slots voided, so that no later server finds them again.

        Within the slice that forgot them, so that none was handed out again meanwhile.
        """
        if not self._forgotten:
            return
        numbers = np.array(self._forgotten, dtype=np.int64)
        self._forgotten.clear()
        for extent, mine in self.slots.by_extent(numbers):
            self._outbox.add(VoidRecords(extent, self.slots.local[mine]))

    def abandon(self, slot: int) -> None:
        """Frees a reserved slot; no copy into it is in flight."""
        extent = self.extents[ExtentId(self.slots.extent_of[slot])]
        extent.add_reserved(-1)
        self.slots.state_of[slot] = FREE
        self.slots.node_of[slot] = NO_NODE
        extent.free.append(slot)

    def unpin(self, owner: Owner, slots: Slots) -> None:
        """Takes one pin from each slot and lets go what nobody reads any more.

        Args:
            owner: whose slots.
            slots: int64[n], each at most once.
        """
        idle = self.slots.unpin(slots)
        nodes = self.slots.node[idle]
        for slot in idle[nodes == NO_NODE].tolist():
            self.slots.state_of[slot] = FREE
            self.extents[ExtentId(self.slots.extent_of[slot])].free.append(slot)
        kept = (nodes != NO_NODE) & (self.slots.generation[idle] > owner.cleared_generation)
        nodes = nodes[kept]
        flags = np.frombuffer(owner.index.flags, dtype=np.uint8)[nodes]
        for node in nodes[(flags & PARKED) != 0].tolist():
            owner.leaves.offer(node)

    def is_cleared(self, owner: Owner, slot: int) -> bool:
        """Whether a published slot belongs to an index that CLEAR has replaced."""
        return int(self.slots.generation[slot]) <= owner.cleared_generation
