"""Which leaf goes first.

Purpose: only unpinned leaves are evicted; this module orders them. Among leaves the least recently
used goes first, and before those, chunks that stayed incomplete for too long or whose engine died.
Must not know: extents, budgets, engines. Runs in: the loop thread.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from protocol.ids import InstanceId
from server.core.index import ABSENT, ChunkIndex

QUEUED, PARKED, WATCHED, OVERDUE = 1, 2, 4, 8
"""Flags of a node: it has an entry in the queue; it was passed over because something holds it; it
has an entry among the incomplete ones; it stayed incomplete for too long and was passed over."""

AGE_NODES = 128
"""Nodes looked at in one call because they stayed incomplete; the others wait their turn."""

_LIFE_BITS = 32
_NODE_BITS = 32
_NODE_MASK = (1 << _NODE_BITS) - 1


class EvictionPolicy(Protocol):
    """What the index needs of a policy; one object per index."""

    def offer(self, node: int) -> None:
        """A node became a leaf, or stopped being held by something."""

    def load(self, leaves: list[int], parked: list[int]) -> None:
        """Many nodes became leaves at once; something holds the second kind."""

    def watch(self, node: int, instance: InstanceId, now_us: int) -> None:
        """A node was published by an engine and still lacks shards."""

    def orphan(self, instance: InstanceId) -> None:
        """An engine died: what it left incomplete goes first."""

    def take(self, now_us: int, evictable: Callable[[int], bool]) -> tuple[int, int]:
        """The leaf to evict, and the stamp up to which its ancestors may go with it."""

    def oldest_us(self) -> int | None:
        """About when the leaf to evict next was last used; None without one."""

    def oldest(self, count: int) -> list[int]:
        """About the leaves to evict next, oldest first; they stay on offer."""


class LeafLru:
    """Least recently used leaf first, by a heap that is corrected when an entry is reached.

    Args:
        index: whose leaves.
        incomplete_timeout_us: age from which an incomplete chunk goes first.
    """

    def __init__(self, index: ChunkIndex, incomplete_timeout_us: int) -> None:
        self._index = index
        self._timeout_us = incomplete_timeout_us
        self._heap: list[int] = []
        self._first: list[tuple[int, int]] = []
        self._incomplete: dict[InstanceId, deque[tuple[int, int, int]]] = {}
        self._orphans: deque[tuple[int, int, int]] = deque()

    def offer(self, node: int) -> None:
        """A node became a leaf, or stopped being held by something."""
        flags = self._index.flags
        if flags[node] & OVERDUE:
            self._first.append((node, self._index.life[node]))
        flags[node] &= ~(PARKED | OVERDUE) & 0xFF
        if self._index.first_child[node] == ABSENT and not flags[node] & QUEUED:
            flags[node] |= QUEUED
            heapq.heappush(self._heap, self._entry(node))

    def load(self, leaves: list[int], parked: list[int]) -> None:
        """Many nodes became leaves at once; something holds the second kind."""
        flags = np.frombuffer(self._index.flags, dtype=np.uint8)
        flags[leaves] |= QUEUED
        flags[parked] |= PARKED
        self._heap += map(self._entry, leaves)
        heapq.heapify(self._heap)

    def _entry(self, node: int) -> int:
        index = self._index
        high = (index.stamp[node] << _LIFE_BITS) | index.life[node]
        return (high << _NODE_BITS) | node

    def watch(self, node: int, instance: InstanceId, now_us: int) -> None:
        """A node was published by an engine and still lacks shards."""
        # One entry per node, however many of its shards are published one by one: then at least
        # half of a queue that is too long is dead, and pruning it pays.
        if self._index.flags[node] & WATCHED:
            return
        self._index.flags[node] |= WATCHED
        queue = self._incomplete.get(instance)
        if queue is None:
            queue = self._incomplete[instance] = deque()
        elif len(queue) > 2 * len(self._index) + 64:
            self._prune(queue)
        # Two out for one in: those that became complete meanwhile do not pile up until a prune.
        for _ in range(2):
            if queue and not self._lacks(*queue[0][1:]):
                _, settled, life = queue.popleft()
                self._is_watched(settled, life)
        queue.append((now_us, node, self._index.life[node]))

    def _prune(self, queue: deque[tuple[int, int, int]]) -> None:
        alive = [entry for entry in queue if self._is_watched(entry[1], entry[2])]
        queue.clear()
        queue.extend(alive)

    def _is_watched(self, node: int, life: int) -> bool:
        """Whether a node still lacks shards; one that is complete now is watched no longer."""
        if self._lacks(node, life):
            return True
        if self._index.life[node] == life:
            # Another group of it may yet be published in part.
            self._index.flags[node] &= ~WATCHED & 0xFF
        return False

    def _lacks(self, node: int, life: int) -> bool:
        return self._index.life[node] == life and self._index.lacks(node)

    def orphan(self, instance: InstanceId) -> None:
        """An engine died: what it left incomplete goes first."""
        queue = self._incomplete.pop(instance, None)
        if queue:
            self._orphans.extend(queue)

    def take(self, now_us: int, evictable: Callable[[int], bool]) -> tuple[int, int]:
        """The leaf to evict, or ABSENT; it is not offered any more.

        Args:
            now_us: current time.
            evictable: whether nothing holds a leaf.

        Returns:
            The leaf, and a stamp: ancestors that become leaves by this and were not used after
            it would be taken next.
        """
        node = self._take_first(now_us, evictable)
        if node != ABSENT:
            return node, -1
        index, heap = self._index, self._heap
        while heap:
            entry = heapq.heappop(heap)
            node = entry & _NODE_MASK
            if index.life[node] != (entry >> _NODE_BITS) & _NODE_MASK:
                continue
            if index.first_child[node] != ABSENT:
                index.flags[node] &= ~QUEUED & 0xFF
            elif index.stamp[node] != entry >> (_NODE_BITS + _LIFE_BITS):
                heapq.heappush(heap, self._entry(node))
            elif evictable(node):
                index.flags[node] &= ~QUEUED & 0xFF
                return node, index.stamp[node]
            else:
                index.flags[node] = (index.flags[node] & ~QUEUED & 0xFF) | PARKED
        return ABSENT, -1

    def _take_first(self, now_us: int, evictable: Callable[[int], bool]) -> int:
        self._age(now_us)
        first, index = self._first, self._index
        for _ in range(min(len(first), AGE_NODES)):
            # Deeper chunks were published later and lie on top, so this finds leaves first.
            node, life = first.pop()
            if not self._is_watched(node, life):
                continue
            if index.first_child[node] == ABSENT and evictable(node):
                return node
            # Its turn comes when its children are gone, or what holds it ends: see ``offer``.
            index.flags[node] |= PARKED | OVERDUE
        return ABSENT

    def _age(self, now_us: int) -> None:
        for _ in range(min(len(self._orphans), AGE_NODES)):
            self._first.append(self._orphans.popleft()[1:])
        left = AGE_NODES
        for instance in list(self._incomplete):
            queue = self._incomplete[instance]
            while (
                left
                and queue
                and (queue[0][0] + self._timeout_us <= now_us or not self._lacks(*queue[0][1:]))
            ):
                left -= 1
                _, node, life = queue.popleft()
                if self._is_watched(node, life):
                    self._first.append((node, life))
            if not queue:
                del self._incomplete[instance]

    def oldest_us(self) -> int | None:
        """About when the leaf to evict next was last used; None without one."""
        return self._heap[0] >> (_NODE_BITS + _LIFE_BITS) if self._heap else None

    def oldest(self, count: int) -> list[int]:
        """About the leaves to evict next, oldest first; they stay on offer.

        Args:
            count: most leaves wanted; about so many entries are looked at, whatever they are.
        """
        index, heap = self._index, self._heap
        for _ in range(count):
            if not heap or self._is_due(heap[0]):
                break
            node = heap[0] & _NODE_MASK
            if index.life[node] != (heap[0] >> _NODE_BITS) & _NODE_MASK:
                heapq.heappop(heap)
            elif index.first_child[node] != ABSENT:
                index.flags[node] &= ~QUEUED & 0xFF
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, self._entry(node))
        found: list[int] = []
        front = [(heap[0], 0)] if heap else []
        for _ in range(2 * count):
            if not front or len(found) == count:
                break
            entry, at = heapq.heappop(front)
            for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heapq.heappush(front, (heap[child], child))
            if self._is_due(entry):
                found.append(entry & _NODE_MASK)
        return found

    def _is_due(self, entry: int) -> bool:
        """Whether an entry is of a leaf, and says when that was last used."""
        node = entry & _NODE_MASK
        return (
            self._index.first_child[node] == ABSENT
            and self._index.life[node] == (entry >> _NODE_BITS) & _NODE_MASK
            and self._index.stamp[node] == entry >> (_NODE_BITS + _LIFE_BITS)
        )
