"""What is in the slab, for those who ask: by name, by use, by tenant.

Purpose: reads the rows of all segments without holding up who reads and writes: the lock is let go
of after each segment. Must not know: how slots are taken and evicted. Runs in: the porter's worker
threads.
"""

from __future__ import annotations

import threading

import numpy as np

from protocol.ids import ID_BYTES
from server.tiers.disk.plan import NAME_BYTES
from server.tiers.disk.segments import Segment, State
from server.tiers.disk.shares import Shares, Tenant


class Contents:
    """The segments of a slab, and whose is what in them.

    Attributes:
        lock: for all of it.
        segments: by number.
        shares: bytes of values by tenant, and quotas.
    """

    def __init__(self, age_bytes: int) -> None:
        """Empty.

        Args:
            age_bytes: of use until the next span of ages begins.
        """
        self.lock = threading.RLock()
        self.segments: dict[int, Segment] = {}
        self.shares = Shares()
        self._span = age_bytes

    def hottest(self, prefix: bytes, suffix: bytes, most: int) -> list[bytes]:
        """Names of values, those used last first, and inside a span of ages those used most.

        Args:
            prefix: what a name begins with.
            suffix: what it ends with.
            most: names wanted, at most.
        """
        begin, end = (np.frombuffer(one, np.uint8) for one in (prefix, suffix))
        found = [np.zeros((0, NAME_BYTES), np.uint8)]
        stamps, uses = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
        for segment in list(self.segments.values()):
            with self.lock:
                names = np.frombuffer(segment.names, np.uint8).reshape(-1, NAME_BYTES)
                is_its = (names[:, : len(begin)] == begin).all(axis=1)
                is_its &= (names[:, NAME_BYTES - len(end) :] == end).all(axis=1)
                slots = np.flatnonzero(is_its & (segment.states == State.USED))
                found.append(names[slots])
                stamps.append(segment.stamps[slots])
                uses.append(segment.uses[slots])
        when = np.concatenate(stamps)
        order = np.lexsort((when, np.concatenate(uses), when // np.uint64(self._span)))
        return [name.tobytes() for name in np.concatenate(found)[order[::-1][:most]]]

    def namespaces(self) -> set[bytes]:
        """Fingerprints, 16 bytes each, of which there is any value."""
        found: set[bytes] = set()
        for segment in list(self.segments.values()):
            with self.lock:
                names = np.frombuffer(segment.names, np.uint8).reshape(-1, NAME_BYTES)
                some = names[segment.states == State.USED, :ID_BYTES]
            found.update(one.tobytes() for one in np.unique(some, axis=0))
        return found

    def of_salt(self, salt: bytes, most: int) -> list[bytes]:
        """Names of values that were stored first under a salt, of any namespace.

        Args:
            salt: digest of it.
            most: names wanted, at most.
        """
        names: list[bytes] = []
        for segment in list(self.segments.values()):
            with self.lock:
                is_its = self.shares.members((True, salt))[segment.groups]
                slots = np.flatnonzero(is_its & (segment.states == State.USED))
                names += map(segment.name, slots[: most - len(names)].tolist())
            if len(names) >= most:
                break
        return names

    def held(self) -> tuple[tuple[tuple[bytes, int], ...], tuple[tuple[bytes, int], ...]]:
        """Bytes of namespaces, the fullest first, and of salts with a quota."""
        with self.lock:
            return self.shares.spaces(), self.shares.salts()

    def excess(self) -> list[Tenant]:
        """Tenants above their limit."""
        with self.lock:
            return self.shares.excess()
