"""Why chunks that were asked for are not there.

Purpose: each chunk that a final answer to a LOOKUP lacks is counted under one reason, that of the
first one lacking: whatever comes after it cannot be used without it. Must not know: how the answer
came about. Runs in: the loop thread.
"""

from __future__ import annotations

from enum import Enum

from protocol.ids import ID_BYTES
from server.core.index import ABSENT
from server.core.namespaces import Owner
from server.core.outbox import Outbox
from server.core.tiers.ghosts import Ghosts


class Miss(Enum):
    """Why a chunk is not there."""

    COLD = "cold"
    EVICTED = "evicted"
    INCOMPLETE = "incomplete"
    DEADLINE = "deadline"
    CORRUPT = "corrupt"
    TIER_ERROR = "tier_error"
    NO_ROOM = "no_room"


class Misses:
    """Counts them.

    Args:
        outbox: where the counters are.
        ghosts: what was evicted.
    """

    def __init__(self, outbox: Outbox, ghosts: Ghosts) -> None:
        self._counters = outbox.counters
        self._ghosts = ghosts

    def note(self, owner: Owner, keys: bytes, ready: int, why: Miss | None = None) -> None:
        """A final answer lacks chunks.

        Args:
            owner: the namespace.
            keys: 16 bytes per chunk that was asked for.
            ready: leading chunks that the answer has.
            why: what a promotion failed of, None where L1 alone was looked at or no tier had it.
        """
        lacking = len(keys) // ID_BYTES - ready
        if lacking > 0:
            self.count(owner, keys[ready * ID_BYTES : (ready + 1) * ID_BYTES], lacking, why)

    def count(self, owner: Owner, first: bytes, lacking: int, why: Miss | None = None) -> None:
        """The same, by the first chunk that lacks.

        Args:
            owner: the namespace.
            first: its key.
            lacking: how many.
            why: as above.
        """
        reason = why or self._reason(owner, first)
        self._counters[f"miss_chunks_{reason.value}"] += lacking

    def _reason(self, owner: Owner, key: bytes) -> Miss:
        if owner.index.find(key) != ABSENT:
            return Miss.INCOMPLETE
        return Miss.EVICTED if self._ghosts.has(owner.fingerprint, key) else Miss.COLD
