"""How many nodes of a Mooncake cluster shall hold a value: the more it is wanted, the more.

Purpose: a value that one node holds is read at that node's speed and is lost with it. Copies cost
memory, so only what is wanted often gets more than the configured number; what was wanted long ago
counts less and less. Must not know: the store, values. Runs in: the porter, any thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from server.tiers.interface import Name

HALF_LIFE_S = 600.0
"""After so long a use counts half."""

USES_PER_COPY = 4
"""Popularity at which one more copy is made; the second needs three times that, then seven: every
further copy stands for twice as many readers."""

MAX_NAMES = 65_536
"""Names that are followed; the one that was silent longest is forgotten first. About 15 MB."""


class Popularity:
    """Uses of each name, decayed.

    Args:
        replicas: copies of a value that nobody asked for yet.
        max_replicas: most copies of any value.
        clock: seconds, monotonic.
    """

    def __init__(
        self, replicas: int, max_replicas: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._replicas = replicas
        self._max_replicas = max(replicas, max_replicas)
        self._clock = clock
        self._lock = threading.Lock()
        self._scores: OrderedDict[Name, tuple[float, float]] = OrderedDict()

    def note(self, name: Name) -> None:
        """A value was read."""
        if self._replicas == self._max_replicas:
            return
        now = self._clock()
        with self._lock:
            self._scores[name] = (self._score(name, now) + 1.0, now)
            self._scores.move_to_end(name)
            if len(self._scores) > MAX_NAMES:
                self._scores.popitem(last=False)

    def copies(self, name: Name, heat: int) -> int:
        """How many nodes shall hold a value that is about to be put.

        Args:
            name: of the value.
            heat: how often the server used its chunk.

        Returns:
            ``replica_num``, from ``replicas`` to ``max_replicas``.
        """
        if self._replicas == self._max_replicas:
            return self._replicas
        with self._lock:
            popularity = self._score(name, self._clock()) + heat
        more = int(math.log2(1.0 + popularity / USES_PER_COPY))
        return min(self._replicas + more, self._max_replicas)

    def _score(self, name: Name, now: float) -> float:
        score, since = self._scores.get(name, (0.0, now))
        return score * math.pow(0.5, (now - since) / HALF_LIFE_S)
