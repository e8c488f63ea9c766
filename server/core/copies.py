"""Pieces of copying: what is waiting, what is in flight, whose turn it is.

Purpose: a STORE is copied in pieces of at most 64 blocks; a bounded number of bytes is in flight
per copier, and sessions take turns, so that a long save delays nobody. Must not know: what a piece
means to its STORE, how copying is done. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from protocol.extents import ExtentGeometry
from protocol.ids import SessionId
from protocol.layout import ShardPool
from server.core.effects import CopierId, JobId, PoolHandle, StartCopy
from server.core.outbox import Outbox


@dataclass
class Piece:
    """A run of chunks of one STORE that lie in one extent.

    Attributes:
        session: whose turn it uses.
        pool: source mapping.
        layout: pages of the source.
        geometry: destination extent.
        local: uint32[n], destination slots within the extent.
        pages: int32[n * chunk_blocks], source pages.
        num_bytes: payload of all n chunks.
        wanted: whether it should still be copied when its turn comes.
        ended: called with an error, None for success; also when it was not wanted any more
            (then with an error and ``started`` False).
        stranded: called when the copier that has it was killed and does not die: it failed, and
            its slots are to be left alone until ``ended``.
        started: whether the copier has it.
    """

    session: SessionId
    pool: PoolHandle
    layout: ShardPool
    geometry: ExtentGeometry
    local: NDArray[np.uint32]
    pages: NDArray[np.int32]
    num_bytes: int
    wanted: Callable[[], bool]
    ended: Callable[[Piece, str | None], None]
    stranded: Callable[[Piece], None] = lambda piece: None
    started: bool = False


def spans(
    piece: Piece,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Byte ranges of a piece, page by page and region by region.

    Args:
        piece: checked against its pool.

    Returns:
        Source offsets in the pool, target offsets in the extent file, lengths: int64[n] each.
    """
    geometry, regions = piece.geometry, piece.layout.regions
    slots = geometry.data_offset_bytes + piece.local.astype(np.int64) * geometry.slot_bytes
    pages = piece.pages.astype(np.int64)
    if geometry.chunk_blocks == 1 and len(regions) == 1:
        (only,) = regions
        lengths = np.full(slots.size, only.size_bytes, dtype=np.int64)
        return only.offset_bytes + pages * only.stride_bytes, slots, lengths
    offsets = np.array([region.offset_bytes for region in regions], dtype=np.int64)
    strides = np.array([region.stride_bytes for region in regions], dtype=np.int64)
    sizes = np.array([region.size_bytes for region in regions], dtype=np.int64)
    within = np.cumsum(sizes) - sizes
    num_blocks = geometry.chunk_blocks
    blocks = np.arange(num_blocks, dtype=np.int64) * piece.layout.page_bytes
    starts = (slots[:, None] + blocks).reshape(-1)
    sources = offsets + pages[:, None] * strides
    targets = starts[:, None] + within
    lengths = np.broadcast_to(sizes, targets.shape)
    return sources.reshape(-1), targets.reshape(-1), lengths.reshape(-1).copy()


class CopyWindow:
    """One copier's work.

    Args:
        copier: which copier.
        window_bytes: bytes in flight; a larger single piece goes alone.
        outbox: where effects go.
        jobs: numbers for pieces, shared with the other copiers; None for a count of its own.

    Attributes:
        is_up: whether the copier runs.
        flying: pieces the copier has, by job.
        flying_bytes: their bytes.
        stranded: pieces of copiers that were killed and do not die, by the copier's life; a life
            is listed until its end was seen, with or without pieces.
    """

    def __init__(
        self,
        copier: CopierId,
        window_bytes: int,
        outbox: Outbox,
        jobs: Iterator[int] | None = None,
    ) -> None:
        self._copier = copier
        self._window_bytes = window_bytes
        self._outbox = outbox
        self._waiting: OrderedDict[SessionId, deque[Piece]] = OrderedDict()
        self._jobs = count(1) if jobs is None else jobs
        self.is_up = True
        self.flying: dict[JobId, Piece] = {}
        self.flying_bytes = 0
        self.stranded: dict[int, list[Piece]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is waiting or in flight."""
        return not self._waiting and not self.flying

    def add(self, piece: Piece) -> None:
        """Queues a piece behind its session's others; without a copier it ends at once.

        The next copier has other mappings, so that a piece kept for it could only fail there.
        """
        if not self.is_up:
            piece.ended(piece, "the copier ended")
            return
        queue = self._waiting.get(piece.session)
        if queue is None:
            queue = self._waiting[piece.session] = deque()
        queue.append(piece)

    def pump(self) -> None:
        """Starts pieces, sessions in turn, as far as the window goes."""
        while self._waiting and self.is_up:
            session, queue = next(iter(self._waiting.items()))
            piece = queue[0]
            wanted = piece.wanted()
            over = self.flying_bytes + piece.num_bytes > self._window_bytes
            if wanted and self.flying and over:
                return
            queue.popleft()
            del self._waiting[session]
            if queue:
                self._waiting[session] = queue
            if wanted:
                self._start(piece)
            else:
                piece.ended(piece, "not wanted any more")

    def _start(self, piece: Piece) -> None:
        job = JobId(next(self._jobs))
        piece.started = True
        self.flying[job] = piece
        self.flying_bytes += piece.num_bytes
        sources, targets, lengths = spans(piece)
        self._outbox.counters["copy_jobs"] += 1
        self._outbox.add(
            StartCopy(
                self._copier, job, piece.pool, piece.geometry.extent, sources, targets, lengths
            )
        )

    def done(self, job: JobId, error: str | None) -> None:
        """StartCopy ended.

        Args:
            job: which; unknown ones (of a copier that was lost) are ignored.
            error: why it failed, or None.
        """
        piece = self.flying.pop(job, None)
        if piece is None:
            return
        self.flying_bytes -= piece.num_bytes
        name = "copied_bytes" if error is None else "copies_failed"
        self._outbox.counters[name] += piece.num_bytes if error is None else 1
        piece.ended(piece, error)

    def lost(self) -> None:
        """The copier is gone: nothing of it can touch memory any more, all its pieces failed."""
        self.is_up = False
        for job in list(self.flying):
            self.done(job, "the copier ended")
        self._end_waiting()

    def strand(self, life: int) -> None:
        """The copier was killed and does not die: its pieces failed, but may still be written.

        Args:
            life: of that copier; ``gone`` names it once its end was seen.
        """
        self.is_up = False
        pieces = self.stranded[life] = list(self.flying.values())
        self.flying.clear()
        self.flying_bytes = 0
        self._outbox.counters["copies_failed"] += len(pieces)
        for piece in pieces:
            piece.stranded(piece)
        self._end_waiting()

    def gone(self, life: int) -> None:
        """A stranded copier is seen dead: nothing of it can touch memory any more."""
        for piece in self.stranded.pop(life, ()):
            piece.ended(piece, "the copier ended")

    def _end_waiting(self) -> None:
        waiting, self._waiting = self._waiting, OrderedDict()
        for queue in waiting.values():
            for piece in queue:
                piece.ended(piece, "the copier ended")

    def drop_unwanted(self, session: SessionId) -> None:
        """Ends a session's waiting pieces that are not wanted any more, out of turn."""
        queue = self._waiting.pop(session, None)
        if queue is None:
            return
        kept: deque[Piece] = deque()
        unwanted: list[Piece] = []
        for piece in queue:
            (kept if piece.wanted() else unwanted).append(piece)
        if kept:
            self._waiting[session] = kept
        for piece in unwanted:
            piece.ended(piece, "not wanted any more")
