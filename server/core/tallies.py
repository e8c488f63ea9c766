"""Requested, hit and loaded: tokens of LOOKUPs, each counted once, so that no later one exceeds.

Purpose: requested is what LOOKUPs named, hit what their answers and those of the QUERYs after them
offered, loaded what was then named for loading; a chunk counts once for each LOOKUP, however often
its answer was repeated or replaced. Must not know: how anything is found or leased. Runs in: the
loop thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

L1 = "l1"
"""Where a chunk was that a LOOKUP found, or that came meanwhile, but from no tier."""

REQUESTED, LOADED = "requested_tokens", "loaded_tokens"
HIT_L1 = f"hit_tokens_{L1}"
"""Names of STATS; another tier's is ``hit_tokens_`` and its name."""


class Tally:
    """Which chunks of one LOOKUP were loaded, under whichever of its leases."""

    __slots__ = ("_loaded",)

    def __init__(self) -> None:
        self._loaded = 0

    def load(self, first: int, count: int) -> int:
        """Notes chunks that were named for loading.

        Args:
            first: of the LOOKUP's chunks, from 0.
            count: chunks.

        Returns:
            Those of them that were not named before.
        """
        asked = ((1 << count) - 1) << first
        fresh = (asked & ~self._loaded).bit_count()
        self._loaded |= asked
        return fresh


def came_from(rides: Iterable[tuple[int, int, str]], first: int, stop: int) -> Counter[str]:
    """Where chunks of a LOOKUP came from.

    Args:
        rides: of each run that was waited for, in their order: its first chunk, the one after the
            last that it brought, and its tier. Where a run began, the one before it had ended.
        first: of the chunks, counted as in the rides.
        stop: the one after the last.

    Returns:
        Chunks by tier; those that no run brought are L1's.
    """
    found: Counter[str] = Counter()
    at = stop
    for begin, end, tier in reversed(list(rides)):
        brought = min(end, at) - max(begin, first)
        if brought > 0:
            found[tier] += brought
        at = min(at, begin)
    left = stop - first - found.total()
    if left > 0:
        found[L1] = left
    return found
