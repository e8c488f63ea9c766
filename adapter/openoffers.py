"""Until when slots that a server named may still be read by this engine's ranks.

An offer stays loadable whatever becomes of its server (design rule 2), so nobody may unmap an
incarnation's extents, nor give its pins back, while an offer of it is open: asked for, promised,
ordered, or ordered and not begun on this rank.

The leader makes the offers and knows. The other ranks learn it from the metadata: all ranks begin
each iteration, and the leader builds the next one only after that (they gather what
``get_finished`` returned; host contract §5). So the second iteration that a rank begins from some
moment on was built after it, and tells which offers of that time are still to be ordered.

An engine that does not iterate tells nothing. Its host ends it when an iteration takes 300 s (host
contract rule 10), so after a longer silence nothing can be under way.

Must not know: sockets, extents. The executor's thread reports; the keeper's thread asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from adapter.metadata import ConnectorMetadata
from protocol.ids import Epoch

QUIET_S: Final = 330.0
"""Silence after which no iteration can be under way; see above."""

_NEWER: Final = 2
"""Iterations begun from a moment on until one of them was built after it."""


@dataclass
class Watch:
    """Someone waits for the end of an incarnation's offers.

    Attributes:
        epoch: the incarnation.
        mark: iterations begun when nothing more could be offered of it.
        num_events: of the engine, when it was looked at last.
        quiet_since_ns: when the engine was seen to do something last.
    """

    epoch: Epoch
    mark: int
    num_events: int
    quiet_since_ns: int


class OpenOffers:
    """The open offers of one engine, as one of its processes knows them."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Starts without any, and not as the leader.

        Args:
            on_change: called, on the executor's thread, when somebody's wait may be over.
        """
        self._on_change = on_change
        self._lock = threading.Lock()
        self._is_leader = False
        self._asked: set[Epoch] = set()
        self._open: frozenset[Epoch] = frozenset()
        self._ordered: dict[Epoch, int] = {}
        self._iteration = 0
        self._num_begun = 0
        self._still_open: frozenset[Epoch] = frozenset()
        self._num_events = 0
        self._is_awaited = False

    # --- the executor's thread -----------------------------------------------------------------

    def lead(self) -> None:
        """This process makes the offers: what it does not know of does not exist."""
        with self._lock:
            self._is_leader = True

    def asking(self, epoch: Epoch) -> None:
        """A question is about to be asked that may end in an offer.

        Args:
            epoch: of the server that is asked. Its registration must be checked after this.
        """
        with self._lock:
            self._asked.add(epoch)

    def built(self, iteration: int, orders: Iterable[bytes], still_open: Iterable[bytes]) -> None:
        """The metadata of an iteration is made; every question was asked before that.

        Args:
            iteration: its number.
            orders: epochs of the offers that it orders to be loaded.
            still_open: epochs of offers that stay promised and are not ordered yet.
        """
        with self._lock:
            self._asked.clear()
            self._open = frozenset(map(Epoch, still_open))
            self._ordered = {e: i for e, i in self._ordered.items() if i > self._iteration}
            self._ordered.update(dict.fromkeys(map(Epoch, orders), iteration))
        self._happened()

    def begun(self, metadata: ConnectorMetadata) -> None:
        """An iteration's loads were begun: each is complete, or holds its extents.

        Args:
            metadata: of the iteration; repeated ones are passed over.
        """
        with self._lock:
            if metadata.iteration <= self._iteration:
                return
            self._iteration = metadata.iteration
            self._num_begun += 1
            self._still_open = frozenset(map(Epoch, metadata.still_open))
        self._happened()

    def _happened(self) -> None:
        with self._lock:
            self._num_events += 1
            is_awaited, self._is_awaited = self._is_awaited, False
        if is_awaited:
            self._on_change()

    # --- the keeper's thread -------------------------------------------------------------------

    def watch(self, epoch: Epoch, now_ns: int) -> Watch:
        """Begins to wait; from now on nothing more may be offered of that incarnation.

        Args:
            epoch: the incarnation.
            now_ns: a clock that stands still while this process does.
        """
        with self._lock:
            return Watch(epoch, self._num_begun, self._num_events, now_ns)

    def is_over(self, watch: Watch, now_ns: int, quiet_ns: int) -> bool:
        """Whether no offer of an incarnation can be loaded on this rank any more.

        Args:
            watch: from ``watch``.
            now_ns: the same clock.
            quiet_ns: silence of the engine that is proof enough.
        """
        epoch = watch.epoch
        with self._lock:
            if watch.num_events != self._num_events:
                watch.num_events, watch.quiet_since_ns = self._num_events, now_ns
            if self._is_leader:
                is_open = epoch in self._asked or epoch in self._open
                is_over = not is_open and self._ordered.get(epoch, 0) <= self._iteration
            else:
                has_begun = self._num_begun >= watch.mark + _NEWER
                is_over = has_begun and epoch not in self._still_open
            is_over = is_over or now_ns - watch.quiet_since_ns >= quiet_ns
            self._is_awaited |= not is_over
            return is_over
