"""Leases: the right to read what a LOOKUP matched.

Purpose: before RETRIEVE a lease locks the deepest matched node, which protects its whole prefix;
RETRIEVE turns chunks into slot pins, one per shard and reader, which only those readers, their
exit, or the scheduler for all of them give back (design rule 3). No timer ends a lease. Must not
know: messages, sockets, who evicts. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable

import numpy as np
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import ErrorCode, RequestError
from protocol.ids import ExtentId, LeaseId, RequestKey, SessionId
from server.core.admission import MORE, WALK_BLOCKS, Pause, Steps
from server.core.arena import Arena
from server.core.clock import Clock
from server.core.lease import Lease, slice_chunks
from server.core.namespaces import Instance
from server.core.slots import HELD, NO_NODE
from server.core.tallies import Tally


class Leases:
    """All leases of the server.

    Args:
        arena: slots and extents.
        clock: current time.
        random_bytes: makes lease ids that cannot be guessed.
        max_slots_per_instance: slot descriptors one instance's leases may remember.

    Attributes:
        by_id: every lease.
    """

    def __init__(
        self,
        arena: Arena,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        max_slots_per_instance: int,
    ) -> None:
        self._arena = arena
        self._clock = clock
        self._random_bytes = random_bytes
        self._max_slots = max_slots_per_instance
        self.by_id: dict[LeaseId, Lease] = {}

    def open(
        self,
        instance: Instance,
        session: SessionId,
        request: RequestKey,
        node: int,
        start: int,
        ready: int,
        tally: Tally | None = None,
    ) -> Lease:
        """Leases matched chunks; an older lease of the request loses its unretrieved part.

        Args:
            instance: whose.
            session: of its scheduler.
            request: request key.
            node: deepest matched node.
            start: ordinal of the first matched chunk.
            ready: matched chunks, 1 and up.
            tally: of the LOOKUP, unless this is its first lease.

        Returns:
            The lease.

        Raises:
            RequestError: LIMIT_EXCEEDED.
        """
        self.end_request(instance, request)
        if len(instance.leases) >= 2 * limits.MAX_LIVE_REQUESTS:
            raise RequestError(
                ErrorCode.LIMIT_EXCEEDED,
                f"one engine may hold {2 * limits.MAX_LIVE_REQUESTS} leases",
            )
        if len(instance.requests) >= limits.MAX_LIVE_REQUESTS:
            raise RequestError(
                ErrorCode.LIMIT_EXCEEDED,
                f"{limits.MAX_LIVE_REQUESTS} requests of one engine may have leases",
            )
        index = instance.owner.index
        lease = Lease(
            lease=LeaseId(self._random_bytes(16)),
            instance=instance,
            session=session,
            request=request,
            index=index,
            node=node,
            life=index.life[node],
            start=start,
            ready=ready,
            tally=Tally() if tally is None else tally,
        )
        index.locks[node] += 1
        self.by_id[lease.lease] = lease
        instance.requests[request] = lease
        instance.leases.add(lease.lease)
        return lease

    def get(self, instance: Instance, lease: bytes) -> Lease | None:
        """A lease of an instance, or None."""
        found = self.by_id.get(LeaseId(lease))
        return found if found is not None and found.instance is instance else None

    # --- retrieving -----------------------------------------------------------------------

    def retrieve(
        self, lease: Lease, first: int, count: int, done: Callable[[bytes], None]
    ) -> Steps:
        """Pins chunks for every reader, in slices.

        Args:
            lease: open.
            first: index of the first chunk within the lease.
            count: chunks, all within the lease.
            done: called with SLOT_DTYPE[count, num_shards] as bytes.

        Raises:
            RequestError: CLEARED or UNKNOWN_LEASE when the chunks went meanwhile.
        """
        # One at a time: what one pinned and takes back when it fails, another would take for held.
        while lease.is_pinning:
            yield MORE
        if self.is_retrieved(lease, first, count):
            done(self.descriptors(lease, first, count))
            return
        pinned: list[tuple[int, NDArray[np.int64]]] = []
        is_done, lease.is_pinning = False, True
        try:
            yield from self._retrieve(lease, first, count, pinned, done)
            is_done = True
        finally:
            lease.is_pinning = False
            if not is_done:
                self._take_back(lease, pinned)
        assert lease.retrieved is not None
        if lease.retrieved.all():
            self.end_unretrieved(lease)

    def _retrieve(
        self,
        lease: Lease,
        first: int,
        count: int,
        pinned: list[tuple[int, NDArray[np.int64]]],
        done: Callable[[bytes], None],
    ) -> Steps:
        nodes = np.empty(lease.ready - first, dtype=np.int64)
        yield from self._walk(lease, nodes)
        self._check_alive(lease)
        self._reserve_memory(lease)
        parts: list[bytes] = []
        step = slice_chunks(lease)
        for begin in range(0, count, step):
            # A slice's pins and notes come at once, so that an end between slices finds
            # each chunk either pinned and noted, or neither.
            self._check_alive(lease)
            part = nodes[begin : min(count, begin + step)]
            self._pin(lease, first + begin, part, pinned)
            parts.append(self.descriptors(lease, first + begin, len(part)))
            yield MORE
        self._check_alive(lease)
        done(b"".join(parts))

    def _walk(self, lease: Lease, nodes: NDArray[np.int64]) -> Steps:
        """Fills in the lease's last nodes, from the deepest up."""
        node, at = lease.node, nodes.size - 1
        while at >= 0:
            self._check_alive(lease)
            stop = max(-1, at - WALK_BLOCKS)
            parent = lease.index.parent
            for position in range(at, stop, -1):
                nodes[position] = node
                node = parent[node]
            at = stop
            yield MORE

    def _take_back(self, lease: Lease, pinned: list[tuple[int, NDArray[np.int64]]]) -> None:
        """Undoes the pins of a RETRIEVE that failed, as far as their readers still have them."""
        for rank, where in pinned:
            assert lease.held_by is not None
            self._release(lease, rank, where[lease.held_by[rank, where]])
        self._forget_if_over(lease)

    def is_retrieved(self, lease: Lease, first: int, count: int) -> bool:
        """Whether every reader still holds all of a range, so that asking again is harmless."""
        if lease.held_by is None or lease.is_pinning:
            return False
        if not lease.node_lives or not lease.instance.is_whole:
            return False
        return bool(
            all(lease.held_by[rank, first : first + count].all() for rank in lease.instance.ranks)
        )

    def descriptors(self, lease: Lease, first: int, count: int) -> bytes:
        """SLOT_DTYPE[count, num_shards] of retrieved chunks, as bytes."""
        assert lease.slots is not None
        return self._arena.slots.descriptors(lease.slots[first : first + count])

    def _check_alive(self, lease: Lease) -> None:
        if not lease.node_lives:
            raise RequestError(ErrorCode.CLEARED, "the leased chunks were cleared")
        if self.by_id.get(lease.lease) is not lease or not lease.is_open:
            raise RequestError(ErrorCode.UNKNOWN_LEASE, "the lease ended")
        if not lease.instance.is_whole:
            raise RequestError(ErrorCode.UNAVAILABLE, "a rank of this engine has left")

    def _reserve_memory(self, lease: Lease) -> None:
        if lease.slots is not None:
            return
        shape = (lease.ready, lease.index.num_shards)
        instance = lease.instance
        if instance.num_leased_slots + shape[0] * shape[1] > self._max_slots:
            raise RequestError(
                ErrorCode.LIMIT_EXCEEDED,
                f"the leases of one engine may name {self._max_slots} slots",
            )
        instance.num_leased_slots += shape[0] * shape[1]
        # Read only where somebody holds a chunk, so not filled: that would be a burst.
        lease.slots = np.empty(shape, dtype=np.int32)
        lease.retrieved = np.zeros(lease.ready, dtype=np.bool_)
        lease.held_by = np.zeros((lease.owner.namespace.num_ranks, lease.ready), dtype=np.bool_)

    def _pin(
        self,
        lease: Lease,
        first: int,
        nodes: NDArray[np.int64],
        pinned: list[tuple[int, NDArray[np.int64]]],
    ) -> None:
        assert lease.slots is not None
        assert lease.retrieved is not None
        assert lease.held_by is not None
        arena, instance = self._arena, lease.instance
        cells = lease.index.cells[nodes]
        if not all(lease.index.full):
            cells[arena.slots.state[cells] != HELD] = NO_NODE
            if instance.unmapped:
                self._leave_out_unmapped(lease, first, cells)
            # Where a reader still holds a chunk it stays as that reader was told, although a
            # window shard of it may have been published since.
            held = lease.held_by[:, first : first + len(nodes)].any(axis=0)
            cells[held] = lease.slots[first : first + len(nodes)][held]
        # Not np.unique: its first call imports for 20 ms, in the loop.
        counts = Counter(arena.slots.extent[_named(cells)].tolist())
        if instance.unmapped and not instance.unmapped.keys().isdisjoint(counts):
            raise RequestError(ErrorCode.UNAVAILABLE, "a rank has not mapped all of it any more")
        run = slice(first, first + len(nodes))
        lease.slots[run] = cells
        lease.retrieved[run] = True
        for rank, session in instance.ranks.items():
            lacking = np.flatnonzero(~lease.held_by[rank, run])
            if lacking.size:
                lease.held_by[rank, first + lacking] = True
                arena.slots.pin(_named(cells[lacking][:, session.shards]), 1)
                pinned.append((rank, first + lacking))
        for extent, number in counts.items():
            arena.extents[ExtentId(extent)].note_use(number, self._clock.now_us)
        lease.index.touch(lease.node, self._clock.now_us)

    def _leave_out_unmapped(self, lease: Lease, first: int, cells: NDArray[np.int32]) -> None:
        """Takes shards that no window of the match needs as absent where a reader lacks them."""
        end, owner = lease.start + lease.ready, lease.owner
        unmapped = np.array(list(lease.instance.unmapped), dtype=np.uint32)
        for shard, window_tokens in enumerate(owner.window_tokens):
            if not window_tokens:
                continue
            for row in range(len(cells)):
                if owner.reaches(window_tokens, lease.start + first + row, end):
                    break
                cell = cells[row, shard]
                if cell != NO_NODE and (self._arena.slots.extent[cell] == unmapped).any():
                    cells[row, shard] = NO_NODE

    # --- giving back ----------------------------------------------------------------------

    def release(self, lease: Lease, rank: int, first: int, count: int) -> int:
        """A reader gives chunks back.

        Args:
            lease: which.
            rank: the reader.
            first: index of the first chunk within the lease.
            count: chunks; what lies outside the lease or was given back is left out.

        Returns:
            Chunks that no reader holds any more because of this.
        """
        if lease.held_by is None or lease.slots is None:
            return 0
        stop = min(lease.ready, first + count)
        ended = self._release(lease, rank, first + np.flatnonzero(lease.held_by[rank, first:stop]))
        self._forget_if_over(lease)
        return ended

    def give_back(
        self, lease: Lease, ranks: Iterable[int], first: int, count: int
    ) -> Generator[Pause, None, int]:
        """Readers give chunks back, in slices.

        Args:
            lease: which.
            ranks: the readers.
            first: index of the first chunk within the lease.
            count: chunks; what lies outside the lease or was given back is left out.

        Returns:
            Chunks that no reader holds any more because of this.
        """
        ended, step, stop = 0, slice_chunks(lease), min(lease.ready, first + count)
        for rank in ranks:
            for begin in range(first, stop, step):
                if begin > first:
                    yield MORE
                ended += self.release(lease, rank, begin, min(step, stop - begin))
            yield MORE
        return ended

    def _release(self, lease: Lease, rank: int, where: NDArray[np.int64]) -> int:
        assert lease.held_by is not None
        assert lease.slots is not None
        if not where.size:
            return 0
        shards = list(lease.owner.namespace.shards_of_rank(rank))
        lease.held_by[rank, where] = False
        self._arena.unpin(lease.owner, _named(lease.slots[where][:, shards]))
        return int((~lease.held_by[:, where].any(axis=0)).sum())

    def end_unretrieved(self, lease: Lease) -> int:
        """Ends a lease's promise of chunks that were not retrieved.

        Args:
            lease: which.

        Returns:
            Chunks whose lease ended by this.
        """
        if not lease.is_open:
            return 0
        lease.is_open = False
        if lease.node_lives:
            index = lease.index
            index.locks[lease.node] -= 1
            if not index.locks[lease.node]:
                lease.owner.leaves.offer(lease.node)
        if lease.instance.requests.get(lease.request) is lease:
            del lease.instance.requests[lease.request]
        left = lease.ready - (int(lease.retrieved.sum()) if lease.retrieved is not None else 0)
        self._forget_if_over(lease)
        return left

    def end_request(self, instance: Instance, request: RequestKey) -> int:
        """Ends the unretrieved part of a request's lease, if it has one."""
        lease = instance.requests.get(request)
        return self.end_unretrieved(lease) if lease is not None else 0

    def reader_gone(self, instance: Instance, rank: int, session: SessionId) -> Steps:
        """A rank left: its shares go, and what it asked for as the scheduler; in slices.

        Args:
            instance: whose leases.
            rank: who left.
            session: its session.
        """
        for lease_id in list(instance.leases):
            lease = self.by_id.get(LeaseId(lease_id))
            if lease is None:
                continue
            if lease.session == session:
                self.end_unretrieved(lease)
            yield from self.give_back(lease, (rank,), 0, lease.ready)

    def _forget_if_over(self, lease: Lease) -> None:
        if lease.is_open or (lease.held_by is not None and lease.held_by.any()):
            return
        if self.by_id.pop(lease.lease, None) is not None:
            lease.instance.leases.discard(lease.lease)
            if lease.slots is not None:
                lease.instance.num_leased_slots -= lease.slots.size


def _named(cells: NDArray[np.int32]) -> NDArray[np.int64]:
    """Slot numbers of cells that have a slot (a window group's may be absent)."""
    flat = cells.reshape(-1).astype(np.int64)
    return flat if flat.size == 0 or int(flat.min()) > NO_NODE else flat[flat > NO_NODE]
