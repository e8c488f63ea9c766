"""The saves of one request: what is named, confirmed, sent and held by the server.

Must not know: other requests, sockets, time. Belongs to the save book and its lock.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES

MAX_STALLS: Final = 3
"""Saves of a request that the server stopped this often are given up."""

DEFER_FIRST_S: Final = 0.02
MAX_DEFERRALS: Final = 6
"""Waits for another STORE double from the first on: 1.3 s in all."""

_MAX_GATES: Final = 8
_NEVER: Final = 1 << 62


class Stage(Enum):
    """Where the one unsettled STORE of a request stands."""

    IDLE = auto()
    COPYING = auto()
    COPIED = auto()
    SETTLING = auto()


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


class SaveEntry:
    """One request's saves. All positions are chunk ordinals.

    Attributes:
        request_id: the host's id.
        key: our number of the request.
        named: chunks up to here are named.
        confirmed: chunks up to here are computed once the gates are passed.
        passed: chunks up to here are computed.
        next_chunk: the first chunk the server does not hold by us.
        retry_at: nothing is sent before this many chunks are confirmed.
        stage: of the unsettled STORE.
        store: its id.
        sent_chunks: its length.
        copied: chunks of it that await COMMIT, from ``next_chunk`` on.
        copied_bind: number of the last bind before its copy was seen complete.
        copied_s: when that was.
        alive_bind: number of the last bind that named the request alive.
        last_chunks: chunks that were computed when the request finished.
        held_since_s: when the host announced that it holds the pages, else None.
        ended: the pages are no longer the request's.
    """

    def __init__(self, request_id: int, key: int, first_chunk: int, parent: bytes) -> None:
        """Starts with nothing named.

        Args:
            request_id: the host's id.
            key: our number of the request.
            first_chunk: ordinal from which chunks will be named.
            parent: key of the chunk before it, or empty.
        """
        self.request_id = request_id
        self.key = key
        self.named = first_chunk
        self.confirmed = first_chunk
        self.passed = first_chunk
        self.next_chunk = first_chunk
        self.retry_at = 0
        self.not_before_s = 0.0
        self.stage = Stage.IDLE
        self.store = 0
        self.sent_chunks = 0
        self.copied = 0
        self.copied_bind = 0
        self.copied_s = 0.0
        self.alive_bind = 0
        self.last_chunks = 0
        self.held_since_s: float | None = None
        self.ended = False
        self._first = first_chunk
        self._parent = parent
        self._keys = bytearray()
        self._pages = np.empty(0, dtype=np.int32)
        self._ticks = np.empty(0, dtype=np.int64)
        self._gates: deque[tuple[int, Mark]] = deque()
        self._num_stalls = 0
        self._num_deferrals = 0

    @property
    def num_confirmed_ahead(self) -> int:
        """Confirmed chunks that the server does not hold by us and that may still be sent."""
        if self.retry_at > self.confirmed:
            return 0
        return max(0, self.confirmed - self.next_chunk)

    @property
    def num_gates(self) -> int:
        """Points in the stream that are waited for."""
        return len(self._gates)

    @property
    def num_ready(self) -> int:
        """Chunks that may be sent now."""
        if self.retry_at > self.confirmed:
            return 0
        return max(0, self.passed - self.next_chunk)

    def is_outstanding(self, upto: int) -> bool:
        """Whether anything named is neither held by the server nor given up.

        Args:
            upto: chunks before this ordinal are known to be computed.
        """
        if self.stage is not Stage.IDLE:
            return True
        upto = min(upto, self.named)
        return upto > self.next_chunk and upto >= self.retry_at

    def add(self, keys: bytes, pages: NDArray[np.int32], ticks: NDArray[np.int64]) -> None:
        """Names further chunks.

        Args:
            keys: 16 bytes per chunk.
            pages: int32[num_chunks * chunk_blocks].
            ticks: int64, of those pages, now.
        """
        self._keys += keys
        self._pages = np.concatenate((self._pages, pages))
        self._ticks = np.concatenate((self._ticks, ticks))
        self.named += len(keys) // ID_BYTES

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

    def part(
        self, first: int, num_chunks: int, chunk_blocks: int
    ) -> tuple[bytes, NDArray[np.int32], bytes]:
        """Keys, pages and parent key of a run of named chunks."""
        at = first - self._first
        keys = bytes(self._keys[at * ID_BYTES : (at + num_chunks) * ID_BYTES])
        pages = self._pages[at * chunk_blocks : (at + num_chunks) * chunk_blocks]
        parent = bytes(self._keys[(at - 1) * ID_BYTES : at * ID_BYTES]) if at else self._parent
        return keys, pages, parent

    def pages_and_ticks(
        self, first: int, num_chunks: int, chunk_blocks: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Pages of a run of named chunks, and their ticks when they were named."""
        at = (first - self._first) * chunk_blocks
        stop = at + num_chunks * chunk_blocks
        return self._pages[at:stop], self._ticks[at:stop]

    def stall(self) -> None:
        """The server stopped short: wait for more chunks before trying from there again."""
        self._num_stalls += 1
        given_up = self._num_stalls >= MAX_STALLS
        self.retry_at = _NEVER if given_up else self.confirmed + 1

    def defer(self, now_s: float) -> bool:
        """Another STORE has the next chunk reserved: try again when it may be held.

        Requests of one burst that share a prefix meet here; without another try all but one of
        them would lose the rest of their prompts.

        Args:
            now_s: monotonic clock, seconds.

        Returns:
            False when that was tried often enough.
        """
        if self._num_deferrals >= MAX_DEFERRALS:
            return False
        self.not_before_s = now_s + DEFER_FIRST_S * 2**self._num_deferrals
        self._num_deferrals += 1
        return True

    def start_over(self) -> None:
        """The server is another one: nothing is held there by us."""
        was_in_flight = self.stage is not Stage.IDLE
        self.stage, self.copied, self.next_chunk = Stage.IDLE, 0, self._first
        if was_in_flight:
            self.stall()
