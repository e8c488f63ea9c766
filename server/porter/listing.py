"""What a tier has, in the order in which it is worth loading: parents before what continues them.

Purpose: the engine knows which chunks it has and how lately they were used; which chunk each of
them continues is in its header. Both together make chains, a page at a time, so that no job takes
long. Must not know: engines, sockets, L1. Runs in: a porter's worker threads.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable

from protocol.ids import ID_BYTES
from server.core.tiers.parts import MAX_LISTED, PAGE_CHUNKS
from server.porter.wire import Command, Kind
from server.tiers import values
from server.tiers.interface import Lister, Name, Tier

READS = PAGE_CHUNKS
"""Headers that are read for one page."""

MAX_LISTINGS = 64
"""Namespaces that are being listed; one more ends the one begun first."""

LISTING = frozenset({Kind.NAMESPACES, Kind.NAMESPACE, Kind.HOTTEST, Kind.NEXT})

_PAGE = struct.Struct("<II")
_NOBODY = bytes(ID_BYTES)


class CannotListError(Exception):
    """The engine does not know what it has, which is no fault of it."""


class Listings:
    """Lists that are being read.

    Args:
        tier: whose.
        moved: called now and then, from the thread that reads.
    """

    def __init__(self, tier: Tier, moved: Callable[[], None]) -> None:
        self._lister = tier if isinstance(tier, Lister) else None
        self._moved = moved
        self._lock = threading.Lock()
        self._begun: OrderedDict[bytes, Listing] = OrderedDict()

    def keep(self, command: Command) -> None:
        """Has a namespace's description kept, where the engine can."""
        if self._lister is not None:
            self._lister.keep_namespace(command.fingerprint, command.text)

    def answer(self, command: Command) -> bytes:
        """Answers one question.

        Args:
            command: of a kind in ``LISTING``.

        Returns:
            What the answer of that kind carries; see ``server.porter.wire``.

        Raises:
            CannotListError: this engine cannot.
            Exception: whatever the engine raises.
        """
        lister, space = self._lister, command.fingerprint
        if lister is None:
            raise CannotListError
        if command.kind == Kind.NAMESPACES:
            return b"".join(lister.namespaces()[:PAGE_CHUNKS])
        if command.kind == Kind.NAMESPACE:
            return lister.namespace(space)
        if command.kind == Kind.HOTTEST:
            keys = lister.hottest(space, command.first, min(command.shards, MAX_LISTED))
            with self._lock:
                self._begun[space] = Listing(lister, space, command.first, keys)
                self._begun.move_to_end(space)
                while len(self._begun) > MAX_LISTINGS:
                    self._begun.popitem(last=False)
        return self._page(space)

    def _page(self, space: bytes) -> bytes:
        with self._lock:
            listing = self._begun.get(space)
        if listing is None:
            return _PAGE.pack(0, 0)
        pairs = listing.page(self._moved)
        if listing.is_over:
            with self._lock:
                self._begun.pop(space, None)
        return _PAGE.pack(listing.total, not listing.is_over) + b"".join(pairs)


class Listing:
    """One list on its way; one page at a time.

    Args:
        lister: reads headers.
        space: fingerprint of the namespace.
        shard: which part of each chunk stands for it.
        keys: of chunks, those to be loaded first at the front.

    Attributes:
        total: chunks in it, as far as known.
    """

    def __init__(self, lister: Lister, space: bytes, shard: int, keys: list[bytes]) -> None:
        self._lister = lister
        self._space = space
        self._shard = shard
        self._keys = keys
        self.total = len(keys)
        self._at = 0
        self._seen: set[bytes] = set()
        #: A chain from its end up, as far as it was climbed; then what of it is still to be told.
        self._line: list[bytes] = []
        self._next = _NOBODY
        self._ready: list[bytes] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        return not self._ready and not self._line and self._at >= len(self._keys)

    def page(self, moved: Callable[[], None]) -> list[bytes]:
        """The next pairs of key and parent's key, 32 bytes each; there may be none yet.

        Args:
            moved: called after each header.
        """
        reads = 0
        while len(self._ready) < PAGE_CHUNKS and reads < READS:
            if not self._line:
                if self._at >= len(self._keys):
                    break
                self._next, self._at = self._keys[self._at], self._at + 1
            reads += self._climb()
            moved()
        # From the back: the last one that became ready is told last.
        pairs, self._ready = self._ready[:PAGE_CHUNKS], self._ready[PAGE_CHUNKS:]
        return pairs

    def _climb(self) -> int:
        """One chunk further up; the whole line is ready where it ends. Returns headers read."""
        key, parent = self._next, None
        is_new = key not in self._seen and len(self._seen) < MAX_LISTED
        if is_new and key != _NOBODY:
            name = Name(self._space, key, self._shard)
            parent = values.parent_of(self._lister.peek(name), name)
        if parent is not None:
            self._seen.add(key)
            self._line.append(key + parent)
            self._next = parent
        if parent is None or parent == _NOBODY:
            self._ready += reversed(self._line)
            self._line = []
        return int(is_new)
