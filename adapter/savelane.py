"""The saves of one request in one layer group: what was sent, copied, held, put off, given up.

Must not know: other requests, sockets, what is confirmed. Belongs to the save book and its lock.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from adapter.stagedrun import StagedRun

MAX_STALLS: Final = 3
"""Saves of a request that the server stopped this often are given up."""

DEFER_FIRST_S: Final = 0.02
MAX_DEFERRALS: Final = 6
"""Waits for another STORE double from the first on: 1.3 s in all."""

_NEVER: Final = 1 << 62
_SLACK_TOKENS: Final = 4
"""A request may be this much further than its reports say: overlap, and a forward that was queued
when it finished."""


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
        reach_chunks: chunks of a sliding window's group that certainly still have their pages,
            counted back from the first chunk not known to be computed; 0 for full attention.
        next_chunk: the first chunk the server does not hold by us.
        retry_at: nothing is sent before this many chunks are confirmed.
        not_before_s: nothing is sent before, on the monotonic clock.
        stage: of the unsettled STORE.
        store: its id; 0 before it went out.
        sent_chunks: its length.
        copied: chunks of it that await COMMIT, from ``next_chunk`` on.
        copied_bind: number of the last bind before its copy was seen complete.
        copied_s: when that was.
        proof_valid: chunks that were computed when a report first proved the request alive after
            the copy; -1 before.
        has_lapsed: its chunks left the window while they were copied.
        staged: chunks that were copied into the ring ahead of their STORE.
    """

    def __init__(self, group: int, first_chunk: int, reach_chunks: int = 0) -> None:
        """Starts with nothing sent.

        Args:
            group: layer group.
            first_chunk: ordinal from which chunks will be named.
            reach_chunks: see the class.
        """
        self.group = group
        self.reach_chunks = reach_chunks
        self.next_chunk = first_chunk
        self.retry_at = 0
        self.not_before_s = 0.0
        self.stage = Stage.IDLE
        self.store = 0
        self.sent_chunks = 0
        self.copied = 0
        self.copied_bind = 0
        self.copied_s = 0.0
        self.proof_valid = -1
        self.has_lapsed = False
        self.staged: list[StagedRun] = []
        self._num_stalls = 0
        self._num_deferrals = 0

    @property
    def is_window(self) -> bool:
        """Whether old pages of it go while the request lives."""
        return self.reach_chunks > 0

    def oldest_chunk(self, valid_chunks: int) -> int:
        """The first chunk whose pages the request certainly still has.

        Args:
            valid_chunks: chunks known to be computed.
        """
        return valid_chunks + 1 - self.reach_chunks if self.reach_chunks else 0

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


def reach_chunks(window_tokens: int, tokens_per_block: int, chunk_tokens: int) -> int:
    """How many chunks back from the first uncomputed one a window keeps all pages.

    The token at position q needs keys from ``q - window + 1`` on; a page may go once it ends
    before. Chunks are known only as whole ones, so nearly one more than counted is assumed.

    Args:
        window_tokens: attention window, or 0 for full attention.
        tokens_per_block: tokens of one page.
        chunk_tokens: tokens of one chunk.

    Returns:
        0 for full attention, else at least 1 (in which case nothing is saved while a request
        lives, for its newest whole chunk may be beyond the window already).
    """
    if window_tokens == 0:
        return 0
    return max(1, (window_tokens + tokens_per_block - _SLACK_TOKENS) // chunk_tokens)
