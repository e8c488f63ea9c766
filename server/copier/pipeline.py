"""Copy jobs of one device under way: pages to the bounce buffer, and from there into the arena.

Purpose: several pieces are in passage at once, so that the device's copy engine and the writing
threads work side by side. A bay of the bounce buffer is used again only after the event behind its
device copy was seen done *and* the writing from it has ended (fault P05); a job has ended when that
holds for all its pieces, so that no copy of it touches memory any more. Nothing here waits: events
of this process are asked, in the order of their streams. Must not know: sockets, handles, which
process a pool is of. Runs in: a device copier's main thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import Batch, Device, DeviceError, Direction, Event, Stream
from server.copier.bounce import Bounce
from server.copier.pieces import Piece, target_runs
from server.copier.writers import Writers

NUM_STREAMS = 2
"""So that the next copy is queued at the device while one ends."""


@dataclass(eq=False)
class Job:
    """One copy job, in bounds.

    Attributes:
        number: of the job.
        pool: number of its source.
        extent: number of its target.
        address: the pool's first byte on the device.
        target: uint8[n], the extent.
        pieces: what is still to be queued.
        num_flying: pieces that have a bay of the bounce buffer.
        is_queued: whether no further piece will be queued.
        error: why it failed, or None.
    """

    number: int
    pool: int
    extent: int
    address: int
    target: NDArray[np.uint8]
    pieces: Iterator[Piece]
    num_flying: int = 0
    is_queued: bool = False
    error: str | None = None


@dataclass(eq=False)
class Passage:
    """One piece on its way.

    Attributes:
        job: whose.
        bay: of the bounce buffer.
        piece: what.
        event: behind its device copy.
        since_s: when that was queued.
    """

    job: Job
    bay: int
    piece: Piece
    event: Event
    since_s: float


class Pipeline:
    """All jobs of one device, begun in the order in which they came.

    Args:
        device: bound to the calling thread.
        bounce: its bays are used by nobody else.
        writers: used by nobody else.
    """

    def __init__(self, device: Device, bounce: Bounce, writers: Writers[Passage]) -> None:
        self._device = device
        self._bounce = bounce
        self._writers = writers
        self._jobs: dict[Job, None] = {}
        self._waiting: deque[Job] = deque()
        streams = [(device.create_stream(), deque[Passage]()) for _ in range(NUM_STREAMS)]
        self._streams: deque[tuple[Stream, deque[Passage]]] = deque(streams)

    @property
    def num_jobs(self) -> int:
        """Jobs that have not ended."""
        return len(self._jobs)

    @property
    def is_asking(self) -> bool:
        """Whether the device is at work, so that ``step`` is due again soon."""
        return any(passages for _, passages in self._streams)

    @property
    def oldest_s(self) -> float | None:
        """When the copy was queued that the device has had for longest, or None."""
        return min((passages[0].since_s for _, passages in self._streams if passages), default=None)

    def add(self, job: Job) -> None:
        """Queues a job behind all others."""
        self._jobs[job] = None
        self._waiting.append(job)

    def step(self, now_s: float) -> list[Job]:
        """Moves everything on as far as it goes without waiting.

        Args:
            now_s: a monotonic clock.

        Returns:
            Jobs that have ended, their errors in them.

        Raises:
            DeviceError: the device failed, or it is unknown how far a copy came; only ``abandon``
                may follow.
        """
        self._take_written()
        for _, passages in self._streams:
            while passages and passages[0].event.query():
                self._arrived(passages.popleft())
        self._queue(now_s)
        ended = [job for job in self._jobs if job.is_queued and not job.num_flying]
        for job in ended:
            del self._jobs[job]
        return ended

    def abandon(self, error: str, timeout_s: float) -> list[Job]:
        """Ends all jobs after the device failed.

        The device may still write into the bounce buffer, which is not used again, and no piece is
        written to the arena that was not seen done.

        Args:
            error: of each job.
            timeout_s: longest wait for writing that is under way.

        Returns:
            All jobs, or none if the writing did not end: then some may still touch memory.
        """
        if not self._writers.settle(timeout_s):
            return []
        self._take_written()
        jobs = list(self._jobs)
        for job in jobs:
            job.error = job.error or error
        self._jobs.clear()
        self._waiting.clear()
        for _, passages in self._streams:
            passages.clear()
        return jobs

    def close(self) -> None:
        """Ends the streams; no job is under way."""
        for stream, _ in self._streams:
            stream.close()

    def _take_written(self) -> None:
        for written in self._writers.collect():
            self._land(written.token)
            if written.error is not None:
                self._fail(written.token.job, written.error)

    def _arrived(self, passage: Passage) -> None:
        if passage.job.error is None:
            self._write(passage)
        else:  # it may not even be whole
            self._land(passage)

    def _land(self, passage: Passage) -> None:
        self._bounce.give_back(passage.bay)
        passage.job.num_flying -= 1

    def _write(self, passage: Passage) -> None:
        self._writers.submit(
            passage, self._bounce.view(passage.bay), passage.job.target, target_runs(passage.piece)
        )

    def _queue(self, now_s: float) -> None:
        while self._waiting and self._bounce.num_free:
            job = self._waiting[0]
            piece = None if job.is_queued else next(job.pieces, None)
            if piece is None:
                job.is_queued = True
                self._waiting.popleft()
            else:
                self._fly(job, piece, now_s)

    def _fly(self, job: Job, piece: Piece, now_s: float) -> None:
        bay = self._bounce.take()
        batch = Batch(
            targets=self._bounce.address(bay) + piece.within,
            sources=job.address + piece.moves.sources,
            sizes=piece.moves.sizes,
        )
        stream, passages = self._streams[0]
        try:
            self._device.copy(stream, batch, Direction.TO_HOST)
        except DeviceError as error:
            if error.is_sticky:
                raise
            # Nothing of it should be queued. Should something be all the same, then its bay is
            # still not used again before the event behind it.
            self._fail(job, str(error))
        passages.append(Passage(job, bay, piece, self._device.record(stream), now_s))
        job.num_flying += 1
        self._streams.rotate(1)

    def _fail(self, job: Job, error: str) -> None:
        """Queues no more of it; it ends once the pieces that fly have landed."""
        job.error = job.error or error
        job.is_queued = True
