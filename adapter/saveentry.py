"""The saves of one request: what is named and confirmed, and how far each layer group is saved.

Must not know: other requests, sockets, time. Belongs to the save book and its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from adapter.savelane import SaveLane, Stage
from adapter.ticks import PageTicks
from protocol.ids import ID_BYTES

_MAX_GATES: Final = 8

SLACK_TOKENS: Final = 4
"""A finished request may be this much further than its last report said it would come: overlap, and
a forward that was queued when it finished. Only where its page tables are not shown at the end."""

T = TypeVar("T", bound=np.generic)


class Mark(Protocol):
    """A point in the engine's stream; ``torch.cuda.Event`` is one."""

    def query(self) -> bool:
        """Whether everything queued before it is done."""


class LostMark:
    """A point that could not be recorded: nothing before it is known to have run."""

    def __init__(self, error: Exception) -> None:
        """Keeps why."""
        self._error = error

    def query(self) -> bool:
        """Never answers.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("the stream took no mark") from self._error


def mark_of(stream: Any) -> Mark | None:
    """The present end of a stream of the host's.

    Args:
        stream: a ``torch.cuda.Stream``, or anything with its ``record_event``.

    Returns:
        None where there are no streams, and so nothing runs.
    """
    record = getattr(stream, "record_event", None)
    mark: Mark | None = None if record is None else record()
    return mark


class SaveEntry:
    """One request's saves. All positions are chunk ordinals.

    Attributes:
        request_id: the host's id.
        key: our number of the request.
        lanes: one per layer group that this rank saves; full attention first, for a window's
            chunks may only be stored behind a parent that the server knows.
        named: chunks up to here are named.
        launched: chunks up to here were named when a forward was launched well.
        confirmed: chunks up to here are computed once the gates are passed.
        passed: chunks up to here are computed.
        next_tokens: the position that the last report of the request says is computed next, or a
            later one.
        reached: the same should that report's forward be its last.
        is_told: the host showed the page tables of its end: what is gone is known exactly.
        alive_bind: number of the last bind that named the request alive.
        last_chunks: chunks that were computed when the request finished.
        held_since_s: when the host announced that it holds the pages, else None.
        ended: the pages are no longer the request's.
        tenant: digest of its salt, or empty.
    """

    def __init__(
        self,
        request_id: int,
        key: int,
        first_chunk: int,
        parent: bytes,
        lanes: Iterable[SaveLane],
        chunk_blocks: int,
    ) -> None:
        """Starts with nothing named.

        Args:
            request_id: the host's id.
            key: our number of the request.
            first_chunk: ordinal from which chunks will be named.
            parent: key of the chunk before it, or empty.
            lanes: one per layer group to be saved.
            chunk_blocks: pages per chunk.
        """
        self.request_id = request_id
        self.key = key
        self.lanes = tuple(sorted(lanes, key=lambda lane: lane.is_window))
        self.named = first_chunk
        self.launched = first_chunk
        self.confirmed = first_chunk
        self.passed = first_chunk
        self.next_tokens = self.reached = 0
        self.is_told = False
        self.alive_bind = 0
        self.last_chunks = 0
        self.held_since_s: float | None = None
        self.ended = False
        self.tenant = b""
        self.first_chunk = first_chunk
        self._chunk_blocks = chunk_blocks
        self._parent = parent
        self._keys = bytearray()
        self._pages = np.empty((0, 0), dtype=np.int32)
        self._ticks = np.empty((0, 0), dtype=np.int64)
        self._gates: deque[tuple[int, Mark]] = deque()
        self._full = tuple(lane for lane in self.lanes if not lane.is_window)
        self._windows = tuple(lane for lane in self.lanes if lane.is_window)

    @property
    def num_gates(self) -> int:
        """Points in the stream that are waited for."""
        return len(self._gates)

    @property
    def is_idle(self) -> bool:
        """Whether no STORE of it is unsettled."""
        return all(lane.stage is Stage.IDLE for lane in self.lanes)

    @property
    def num_named(self) -> int:
        """Chunks that were named."""
        return self.named - self.first_chunk

    @property
    def has_ahead(self) -> bool:
        """Whether something confirmed may still be sent."""
        return any(self.num_ahead(lane, self.confirmed) for lane in self.lanes)

    def lane(self, group: int) -> SaveLane | None:
        """The lane of a layer group, if it is saved."""
        return next((lane for lane in self.lanes if lane.group == group), None)

    def num_ahead(self, lane: SaveLane, upto: int) -> int:
        """Chunks of a lane that the server does not hold by us and that may be sent.

        Args:
            lane: of this entry; what a window has left behind is skipped for good.
            upto: chunks before this ordinal count.
        """
        if lane.retry_at > self.confirmed:
            return 0
        return max(0, self._stop(lane, upto) - lane.next_chunk)

    def is_outstanding(self, upto: int) -> bool:
        """Whether anything named is neither held by the server nor given up.

        Args:
            upto: chunks before this ordinal are known to be computed.
        """
        upto = min(upto, self.named)
        return not self.is_idle or any(
            upto >= lane.retry_at and self._stop(lane, upto) > lane.next_chunk
            for lane in self.lanes
        )

    def _stop(self, lane: SaveLane, upto: int) -> int:
        """Where sending must end; moves the lane past chunks that it cannot save."""
        if not lane.is_window:
            return upto
        if lane.stage is Stage.IDLE:
            lane.next_chunk = max(lane.next_chunk, self.oldest_chunk(lane))
            while lane.next_chunk < upto and not self.has_pages(lane, lane.next_chunk):
                lane.next_chunk += 1
        for full in self._full:
            # The server must know the first one's parent; time is short, so that is all that is
            # waited for. Where full attention is given up nothing behind it can be found.
            if full.known_chunk < lane.next_chunk or full.retry_at > self.confirmed:
                upto = min(upto, full.known_chunk)
        return upto

    def oldest_chunk(self, lane: SaveLane) -> int:
        """The first chunk of a lane that certainly still has its pages."""
        if self.is_told:
            return 0  # those that are gone were taken out
        is_over = self.held_since_s is not None
        return lane.oldest_chunk(self.reached + SLACK_TOKENS if is_over else self.next_tokens)

    def has_pages(self, lane: SaveLane, chunk: int) -> bool:
        """Whether a named chunk was named with pages in a layer group."""
        at = (chunk - self.first_chunk) * self._chunk_blocks
        return bool((self._pages[lane.group, at : at + self._chunk_blocks] >= 0).all())

    def num_present(self, lane: SaveLane, num_chunks: int) -> int:
        """Leading chunks from the lane's next one on that have pages.

        Args:
            lane: of this entry.
            num_chunks: at most so many.
        """
        if not lane.is_window:
            return num_chunks
        for count in range(num_chunks):
            if not self.has_pages(lane, lane.next_chunk + count):
                return count
        return num_chunks

    def add(self, keys: bytes, pages: NDArray[np.int32], ticks: NDArray[np.int64]) -> None:
        """Names further chunks.

        Args:
            keys: 16 bytes per chunk.
            pages: int32[num_groups, num_chunks * chunk_blocks].
            ticks: int64, of those pages, now.
        """
        start = len(self._keys) // ID_BYTES * self._chunk_blocks
        stop = start + pages.shape[1]
        if stop > self._pages.shape[1] or not start:
            self._pages = _grown(self._pages, len(pages), start, stop)
            self._ticks = _grown(self._ticks, len(pages), start, stop)
        self._pages[:, start:stop] = pages
        self._ticks[:, start:stop] = ticks
        self._keys += keys
        self.named += len(keys) // ID_BYTES

    def seen_alive(
        self, bind: int, next_tokens: int, ticks: Sequence[PageTicks], reached: int = 0
    ) -> None:
        """A report names the request: its pages are still its own.

        Args:
            bind: number of this bind.
            next_tokens: the position that is computed next, or a later one.
            ticks: of each layer group's pages, this bind's taken in.
            reached: the position should this iteration's forward be its last; 0 for the same.
        """
        self.alive_bind, self.next_tokens = bind, next_tokens
        self.reached = max(next_tokens, reached)
        for lane in self._windows:
            if lane.stage is Stage.COPIED and lane.proven < 0:
                lane.proven = self.num_owned(lane, ticks)

    def num_owned(self, lane: SaveLane, ticks: Sequence[PageTicks]) -> int:
        """Leading chunks of a lane's copy whose pages did not change hands since they were named.

        Args:
            lane: of this entry; notes when a window has left some of the copy behind.
            ticks: of each layer group's pages.
        """
        first = lane.next_chunk
        has_left = first < self.oldest_chunk(lane) or not self.has_pages(lane, first)
        if lane.is_window and has_left:
            lane.has_lapsed = True
            return 0
        pages, seen = self.pages_and_ticks(lane.group, lane.next_chunk, lane.copied)
        return ticks[lane.group].num_unchanged(pages, seen) // self._chunk_blocks

    def tell_pages(self, tables: Sequence[Sequence[int]], ticks: Sequence[PageTicks]) -> None:
        """The host shows all pages at a request's end: what is there was there all the time.

        Args:
            tables: for each layer group, by block ordinal; -1 for what left a window.
            ticks: of each layer group's pages, now.
        """
        self.is_told = True
        first, count = self.first_chunk * self._chunk_blocks, self.num_named * self._chunk_blocks
        for lane in self._windows:
            now = np.full(count, -1, dtype=np.int32)
            part = tables[lane.group][first : first + count]
            now[: len(part)] = part
            named = self._pages[lane.group, :count]
            now[now != named] = -1  # a copy, if there is one, is of the page that was named
            named[:] = now
            self._ticks[lane.group, :count] = ticks[lane.group].of(now)

    def confirm(self, upto: int, mark: Mark | None) -> None:
        """Chunks before ``upto`` are computed once the stream has passed ``mark``.

        Args:
            upto: chunk ordinal; only named chunks count.
            mark: a point behind the forwards that computed them; None when nothing runs.
        """
        upto = min(upto, self.named)
        if upto <= self.confirmed:
            return
        self.confirmed = upto
        if mark is None:
            self._gates.clear()
            self.passed = upto
        elif len(self._gates) >= _MAX_GATES:
            self._gates[-1] = (upto, mark)
        else:
            self._gates.append((upto, mark))

    def pass_gates(self) -> None:
        """Looks which marks the stream has passed; a failed stream confirms nothing."""
        while self._gates:
            upto, mark = self._gates[0]
            try:
                if not mark.query():
                    return
            except Exception:  # noqa: BLE001 - whatever the device says, these pages are suspect
                self.ended = True
                self._gates.clear()
                return
            self._gates.popleft()
            self.passed = upto

    def keys_of(self, first: int, num_chunks: int) -> tuple[bytes, bytes]:
        """Keys of a run of named chunks, and of the chunk before it."""
        at = first - self.first_chunk
        keys = bytes(self._keys[at * ID_BYTES : (at + num_chunks) * ID_BYTES])
        parent = bytes(self._keys[(at - 1) * ID_BYTES : at * ID_BYTES]) if at else self._parent
        return keys, parent

    def pages_and_ticks(
        self, group: int, first: int, num_chunks: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """A group's pages of a run of named chunks, and their ticks when they were named."""
        at = (first - self.first_chunk) * self._chunk_blocks
        stop = at + num_chunks * self._chunk_blocks
        return self._pages[group, at:stop], self._ticks[group, at:stop]


def _grown(rows: NDArray[T], num_rows: int, used: int, needed: int) -> NDArray[T]:
    """More room, doubled each time: adding to a long request costs no more than to a short one."""
    room = np.zeros((num_rows, max(16, 2 * needed)), dtype=rows.dtype)
    if used:
        room[:, :used] = rows[:, :used]
    return room
