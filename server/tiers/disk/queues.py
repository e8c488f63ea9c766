"""Which files of a shared folder go first: those used longest ago, of what quotas let go.

Purpose: files wait in one queue for each set of tenants with quotas, so that the oldest of a tenant
is found at once, and the oldest of what floors do not keep. Must not know: how files are found or
removed. Runs in: the porter; the keeper's lock guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from heapq import heappop, heappush, heappushpop, merge
from typing import NamedTuple

from server.tiers.disk.holdings import Value, grouped
from server.tiers.disk.shares import Shares, Tenant, Whose

MAX_CANDIDATES = 65_536
"""Files that are known as the next to go; some 40 MB. Several queues share it."""


class Candidate(NamedTuple):
    """A file, as it was when it was looked at.

    Attributes:
        used_ns: its time of change, which each use sets.
        path: of the file.
        value: as it counts.
        is_counted: whether it is in the sums for sure.
    """

    used_ns: int
    path: str
    value: Value
    is_counted: bool = True


class Queues:
    """The candidates.

    Attributes:
        tenants: those with quotas.
        is_cut: whether there are files that are in no queue.
        is_worn: whether half of a queue that knew no more is gone: behind what is left of it those
            that were used meanwhile wait, and older ones are in no queue.
    """

    def __init__(self, tenants: Collection[Tenant]) -> None:
        """Empty.

        Args:
            tenants: those with quotas.
        """
        self.tenants = frozenset(tenants)
        self.is_cut = self.is_worn = False
        #: How many more may go of a queue that knows no more.
        self._left: dict[tuple[Tenant, ...], int] = {}
        self._queues: dict[tuple[Tenant, ...], deque[Candidate]] = {}
        self._heaps: dict[tuple[Tenant, ...], list[tuple[int, Candidate]]] = {}

    def gather(self, candidate: Candidate) -> None:
        """Takes one of a walk, in any order; it waits from ``settle`` on if it is old enough."""
        kind = self._kind(candidate.value.whose)
        heap = self._heaps.get(kind)
        if heap is None:
            heap = self._heaps[kind] = []
            self._cut()
        entry = -candidate.used_ns, candidate
        if len(heap) < MAX_CANDIDATES // len(self._heaps):
            heappush(heap, entry)
        else:
            self._cut_off(kind, len(heap))
            heappushpop(heap, entry)

    def settle(self) -> None:
        """Orders what was gathered."""
        for kind, heap in self._heaps.items():
            self._queues[kind] = deque(sorted(candidate for _, candidate in heap))
        self._heaps = {}

    def merge(self, others: Iterable[Candidate]) -> None:
        """Takes those that were used while others were gathered, each where it belongs."""
        kinds: dict[tuple[Tenant, ...], list[Candidate]] = {}
        for one in others:
            kinds.setdefault(self._kind(one.value.whose), []).append(one)
        for kind, fresh in kinds.items():
            fresh.sort()
            queue, younger = self._queues.setdefault(kind, deque()), deque[Candidate]()
            # Few if any: what was used just now is younger than what was used longest ago.
            while queue and queue[-1] > fresh[0]:
                younger.appendleft(queue.pop())
            queue.extend(merge(younger, fresh))

    def add(self, candidate: Candidate) -> None:
        """One that was used now: it goes after those before it."""
        kind = self._kind(candidate.value.whose)
        queue = self._queues.setdefault(kind, deque())
        if len(queue) < MAX_CANDIDATES // len(self._queues):
            queue.append(candidate)
        elif kind not in self._left:
            self._cut_off(kind, len(queue))

    def take(self, shares: Shares, taker: Whose, of: Tenant | None = None) -> Candidate | None:
        """Takes out the one that goes first; it counts as leaving from now on.

        Args:
            shares: whose is what.
            taker: who wants the room: its own floors do not hold against it.
            of: only this tenant's may go; None for anybody's.
        """
        first: deque[Candidate] | None = None
        its: tuple[Tenant, ...] = ()
        for kind, queue in self._queues.items():
            if not queue or (of is not None and of not in kind):
                continue
            if first is not None and first[0].used_ns <= queue[0].used_ns:
                continue
            if _may_lose(shares, kind, queue[0].value.length_bytes, taker):
                first, its = queue, kind
        if not first:
            return None
        taken = first.popleft()
        if its in self._left:
            self._left[its] -= 1
            self.is_worn |= self._left[its] <= 0
        shares.leave(taken.value.whose, taken.value.length_bytes)
        return taken

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not any(self._queues.values())

    def drop(self, space: bytes) -> None:
        """Takes out all of a namespace."""
        for kind, queue in self._queues.items():
            self._queues[kind] = deque(one for one in queue if one.value.whose.space != space)

    def among(self, tenants: Collection[Tenant], salts: frozenset[bytes]) -> Queues:
        """The same files, waiting by other tenants.

        Args:
            tenants: those with quotas now.
            salts: digests among them.
        """
        others = Queues(tenants)
        others.is_cut = self.is_cut
        for queue in self._queues.values():
            for one in queue:
                whose = grouped(one.value.whose, salts)
                others.gather(one._replace(value=one.value._replace(whose=whose)))
        others.settle()
        return others

    def _cut(self) -> None:
        """Lets go of the youngest of those that have more than their part now."""
        most = MAX_CANDIDATES // len(self._heaps)
        for kind, heap in self._heaps.items():
            if len(heap) > most:
                self._cut_off(kind, most)
            while len(heap) > most:
                heappop(heap)

    def _cut_off(self, kind: tuple[Tenant, ...], number: int) -> None:
        """A queue of so many knows no more from now on."""
        self.is_cut = True
        self._left[kind] = number // 2

    def _kind(self, whose: Whose) -> tuple[Tenant, ...]:
        return tuple(one for one in whose.tenants if one in self.tenants) if self.tenants else ()


def _may_lose(shares: Shares, kind: tuple[Tenant, ...], num_bytes: int, taker: Whose) -> bool:
    return not shares.floors or all(
        shares.spare_bytes(tenant) >= num_bytes
        for tenant in kind
        if tenant in shares.floors and tenant not in taker.tenants
    )
