"""Values that came and could not be read: the next write of each takes its place.

Purpose: a tier sends nothing again that it has, for all servers write the same; but what was
encrypted with a key that this server does not have is not what it would write. So such a value is
removed just before it is written anew, and not earlier: servers that have the key read it until
then. Must not know: tiers' kinds, why a value cannot be read. Runs in: a porter's worker threads,
several at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from server.core.tiers.parts import Status
from server.tiers.interface import Name

MAX_NAMES = 65_536
"""Names kept, some 20 MiB; those that came first go first, and are noted again when they are read
again."""


class Unreadable:
    """Names of values that could not be read when they were last asked for.

    Args:
        limit: names at most.
    """

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._names: OrderedDict[Name, None] = OrderedDict()

    def came(self, name: Name, status: Status) -> None:
        """A value was read, or could not be.

        Args:
            name: its name.
            status: what it was found to be.
        """
        if status is Status.LOCKED:
            self.note([name])
        elif self._names and status is Status.OK:
            self.take([name])

    def note(self, names: Iterable[Name]) -> None:
        """Values are there that cannot be read."""
        with self._lock:
            for name in names:
                self._names[name] = None
                if len(self._names) > self._limit:
                    self._names.popitem(last=False)

    def take(self, names: Iterable[Name]) -> list[Name]:
        """Those of some names that are noted; they are not any more."""
        if not self._names:
            return []
        with self._lock:
            found = [name for name in names if name in self._names]
            for name in found:
                self._names.pop(name, None)
        return found
