"""The saves of one request in one layer group: what was sent, copied, held, put off, given up.

Must not know: other requests, sockets, what is confirmed. Belongs to the save book and its lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from adapter.stagedrun import StagedRun
from adapter.windows import num_left

MAX_STALLS: Final = 3
"""Saves of a request that the server stopped this often are given up."""

DEFER_FIRST_S: Final = 0.02
MAX_DEFERRALS: Final = 6
"""Waits for another STORE double from the first on: 1.3 s in all."""

_NEVER: Final = 1 << 62


@dataclass(frozen=True)
class Reach:
    """Which chunks of a sliding window's group still have all their pages.

    Attributes:
        window_tokens: attention window.
        tokens_per_block: tokens of one page.
        chunk_blocks: pages of one chunk.
    """

    window_tokens: int
    tokens_per_block: int
    chunk_blocks: int

    def oldest_chunk(self, next_tokens: int) -> int:
        """The first chunk none of whose pages may have gone.

        Args:
            next_tokens: the position that is computed next, or a later one.
        """
        return -(
            -num_left(next_tokens, self.window_tokens, self.tokens_per_block) // self.chunk_blocks
        )


class Stage(Enum):
    """Where the one unsettled STORE of a lane stands."""

    IDLE = auto()
    COPYING = auto()
    COPIED = auto()
    SETTLING = auto()


class SaveLane:
    """All positions are chunk ordinals.

    Attributes:
        group: layer group.
        reach: of its sliding window; None for full attention.
        next_chunk: the first chunk the server does not hold by us.
        retry_at: nothing is sent before this many chunks are confirmed.
        not_before_s: nothing is sent before, on the monotonic clock.
        stage: of the unsettled STORE.
        store: its id; 0 before it went out.
        sent_chunks: its length.
        copied: chunks of it that await COMMIT, from ``next_chunk`` on.
        copied_bind: number of the last bind before its copy was seen complete.
        copied_s: when that was.
        proven: for a window, leading chunks of the copy whose pages were the request's until it
            was complete, as the first report after it says; -1 before. What leaves later was
            copied in time.
        has_lapsed: its chunks left the window while they were copied.
        staged: chunks that were copied into the ring ahead of their STORE.
    """

    def __init__(self, group: int, first_chunk: int, reach: Reach | None = None) -> None:
        """Starts with nothing sent.

        Args:
            group: layer group.
            first_chunk: ordinal from which chunks will be named.
            reach: see the class.
        """
        self.group = group
        self.reach = reach
        self.next_chunk = first_chunk
        self.retry_at = 0
        self.not_before_s = 0.0
        self.stage = Stage.IDLE
        self.store = 0
        self.sent_chunks = 0
        self.copied = 0
        self.copied_bind = 0
        self.copied_s = 0.0
        self.proven = -1
        self.has_lapsed = False
        self.staged: list[StagedRun] = []
        self._num_stalls = 0
        self._num_deferrals = 0

    @property
    def is_window(self) -> bool:
        """Whether old pages of it go while the request lives."""
        return self.reach is not None

    @property
    def known_chunk(self) -> int:
        """Chunks before this one are in the server's index, held or copied."""
        is_copied = self.stage in (Stage.COPIED, Stage.SETTLING)
        return self.next_chunk + (self.copied if is_copied else 0)

    def oldest_chunk(self, next_tokens: int) -> int:
        """The first chunk whose pages the request certainly still has.

        Args:
            next_tokens: the position that is computed next, or a later one.
        """
        return 0 if self.reach is None else self.reach.oldest_chunk(next_tokens)

    def stall(self, confirmed: int) -> None:
        """The server stopped short: wait for more chunks before trying from there again.

        Args:
            confirmed: chunks that are confirmed now.
        """
        self._num_stalls += 1
        given_up = self._num_stalls >= MAX_STALLS
        self.retry_at = _NEVER if given_up else confirmed + 1

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

    def start_over(self, first_chunk: int, confirmed: int) -> None:
        """The server is another one: nothing is held there by us.

        Args:
            first_chunk: ordinal of the first chunk that was named.
            confirmed: chunks that are confirmed now.
        """
        was_in_flight = self.stage is not Stage.IDLE
        self.stage, self.copied, self.next_chunk = Stage.IDLE, 0, first_chunk
        self.has_lapsed = False
        if was_in_flight:
            self.stall(confirmed)
