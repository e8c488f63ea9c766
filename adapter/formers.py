"""What this process still has of servers that are gone, and the word that it has nothing more.

An incarnation's extents stay mapped while an offer of it is open, are unmapped then, and each later
server is told ``Drained`` of every incarnation that was met before, for it may have to wait for
that before it overwrites what it took over. There is no answer to Drained, and a server may be
killed before it heeds it, so the next one is told again.

Must not know: what a stay is. Runs in: the keeper's thread. Drained speaks for the whole process,
so its links agree through a table they share.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from adapter.extents import ExtentTable
from adapter.mapper import Mapper
from adapter.openoffers import OpenOffers, Watch
from protocol.ids import Epoch, Token
from protocol.side import Drained

MAX_FORMERS: Final = 64
"""Incarnations of which a server is told; earlier ones have been told of 64 times."""

MAX_TOKENS: Final = 16
"""Side connections of one incarnation that are told by their token."""

MAX_NEWS: Final = 64
"""Packets told in one turn: a side socket that is not read at once has room for four times that,
and whoever sends more ends the stay, and the next one, and is uncached for good."""

_STEP_NS: Final = 2_000_000_000
"""A process that was stopped has not been waiting: no turn counts for more than this."""


class _Readers:
    """Which links of this process may still read what an incarnation gave them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[Epoch, set[object]] = {}

    def add(self, epoch: Epoch, link: object) -> None:
        with self._lock:
            self._links.setdefault(epoch, set()).add(link)

    def remove(self, epoch: Epoch, link: object) -> None:
        with self._lock:
            links: set[object] = self._links.get(epoch, set())
            links.discard(link)
            if not links:
                self._links.pop(epoch, None)

    def has(self, epoch: Epoch) -> bool:
        with self._lock:
            return epoch in self._links


_READERS: Final = _Readers()


@dataclass
class _Met:
    """An incarnation that took a side connection of ours.

    Attributes:
        tokens: from its welcomes, without repetition.
        watch: of its offers, since another incarnation was met.
        is_retired: its extents were barred from further use.
        is_drained: none of them is mapped.
        told: number of the stay in which the server was told.
    """

    tokens: list[Token] = field(default_factory=list)
    watch: Watch | None = None
    is_retired: bool = False
    is_drained: bool = False
    told: int = 0


class Formers:
    """The incarnations that one link has met."""

    def __init__(
        self, table: ExtentTable, mapper: Mapper, offers: OpenOffers, quiet_s: float
    ) -> None:
        """Starts without any.

        Args:
            table: of the link.
            mapper: of the link.
            offers: of the engine.
            quiet_s: silence of the engine after which no offer can be open.
        """
        self._table = table
        self._mapper = mapper
        self._offers = offers
        self._quiet_ns = int(quiet_s * 1e9)
        self._key = object()
        self._met: OrderedDict[Epoch, _Met] = OrderedDict()
        self._ran_ns = 0
        self._last_ns: int | None = None

    def tick(self, now_ns: int) -> None:
        """Moves on the clock that stands still while this process does.

        Args:
            now_ns: monotonic clock.
        """
        if self._last_ns is not None:
            self._ran_ns += min(max(0, now_ns - self._last_ns), _STEP_NS)
        self._last_ns = now_ns

    def welcome(self, epoch: Epoch, token: Token) -> None:
        """A server took a side connection of ours. Those met before offer nothing any more.

        Args:
            epoch: of the server.
            token: of the connection.
        """
        met = self._met.pop(epoch, None)
        if met is None or met.watch is not None:
            met = _Met(tokens=[] if met is None else met.tokens)
        self._met[epoch] = met
        if token not in met.tokens:
            met.tokens = [*met.tokens, token][-MAX_TOKENS:]
        _READERS.add(epoch, self._key)
        for former, other in self._met.items():
            if former != epoch and other.watch is None:
                other.watch = self._offers.watch(former, self._ran_ns)
        while len(self._met) > MAX_FORMERS and next(iter(self._met.values())).is_drained:
            self._met.popitem(last=False)

    def watch(self, epoch: Epoch) -> Watch:
        """Begins to wait for the end of a registration's offers.

        Args:
            epoch: its server, which grants it nothing more.
        """
        return self._offers.watch(epoch, self._ran_ns)

    def is_over(self, watch: Watch) -> bool:
        """Whether nothing is loaded, or will be, of a registration that was left.

        Args:
            watch: from ``watch``.
        """
        is_over = self._offers.is_over(watch, self._ran_ns, self._quiet_ns)
        return is_over and not self._table.is_used(watch.epoch)

    def turn(self) -> None:
        """Unmaps what nothing can be loaded from any more."""
        for epoch, met in self._met.items():
            if met.watch is None or met.is_drained:
                continue
            if not met.is_retired and self._offers.is_over(met.watch, self._ran_ns, self._quiet_ns):
                met.is_retired = True
                self._table.retire(epoch)
                self._mapper.kick()
            if met.is_retired and not (self._mapper.is_mapping(epoch) or self._table.has(epoch)):
                met.is_drained = True
                _READERS.remove(epoch, self._key)

    def news(self, stay: int) -> list[Drained]:
        """What the present server is to be told, each once in a stay, some of it in each turn.

        Args:
            stay: number of the side connection.
        """
        found: list[Drained] = []
        for epoch, met in self._met.items():
            if len(found) + len(met.tokens) > MAX_NEWS:
                break  # the keeper's next turn is a second from now at the latest
            if met.is_drained and met.told != stay and not _READERS.has(epoch):
                met.told = stay
                found += [Drained(epoch=epoch, token=token) for token in met.tokens]
        return found

    def next_ns(self, now_ns: int, more: Watch | None = None) -> int | None:
        """When a wait may end even if nothing happens.

        Args:
            now_ns: monotonic clock.
            more: a wait from ``watch``.

        Returns:
            On the monotonic clock; None for never.
        """
        watches = [met.watch for met in self._met.values() if not met.is_retired]
        since = [watch.quiet_since_ns for watch in (*watches, more) if watch is not None]
        if not since:
            return None
        return now_ns + max(0, min(since) + self._quiet_ns - self._ran_ns)

    def close(self) -> None:
        """The link has ended and nothing is loaded through it any more."""
        for epoch in self._met:
            if not self._table.has(epoch):
                _READERS.remove(epoch, self._key)
