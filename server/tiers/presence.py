"""What a store was lately seen to hold, so that it is not asked again for each lookup.

Only what is there is kept, for a while and up to a number: a hint, as every answer of a tier is.
Must not know: any store. Runs in: the porter, any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from server.tiers.interface import Name

LIMIT = 65_536
"""Names; about 20 MiB."""

TTL_S = 30.0


class Presence:
    """Names seen lately.

    Args:
        clock: seconds, never backwards.
        limit: names at most; the one noted longest ago makes room.
        ttl_s: a name counts for so long after it was noted.
    """

    def __init__(
        self, clock: Callable[[], float], limit: int = LIMIT, ttl_s: float = TTL_S
    ) -> None:
        self._clock = clock
        self._limit = limit
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._until: OrderedDict[Name, float] = OrderedDict()

    def note(self, name: Name) -> None:
        """A name was seen just now."""
        with self._lock:
            self._until[name] = self._clock() + self._ttl_s
            self._until.move_to_end(name)
            if len(self._until) > self._limit:
                self._until.popitem(last=False)

    def forget(self, name: Name) -> None:
        """A name is not there, or will not be."""
        with self._lock:
            self._until.pop(name, None)

    def forget_all(self, fingerprint: bytes) -> None:
        """So is a whole namespace."""
        with self._lock:
            for name in [name for name in self._until if name.fingerprint == fingerprint]:
                del self._until[name]

    def has(self, name: Name) -> bool:
        """Whether a name was seen lately."""
        with self._lock:
            until = self._until.get(name)
            if until is not None and until <= self._clock():
                del self._until[name]
                return False
            return until is not None
