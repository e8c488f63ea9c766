"""What the saver asked of the server and has no answer to, or had to give up.

A STORE that is given up leaves a reservation at the server, and may still be read from: it is an
*orphan* until its CANCEL was answered. A CANCEL that was refused for the moment did nothing, so it
is repeated. What an orphan read of the ring stays lent until then; if that registration ends first,
until the next one stands: a registration follows the end of the one before.

Must not know: sockets, requests, the ledger. Belongs to the saver's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from adapter.ring import Lot
from protocol.logline import About

MAX_ORPHANS: Final = 256
"""The server keeps no more uncommitted STOREs of one session."""

AGAIN_S: Final = 0.1
"""Before what the server put off is asked again."""


class Purpose(Enum):
    """What a request is for."""

    STORE = 0
    SETTLE = 1  # COMMIT, or CANCEL of a STORE that was answered
    WITHDRAW = 2  # CANCEL of an orphan


@dataclass(frozen=True)
class Ticket:
    """A request in flight about one STORE.

    Attributes:
        purpose: what it is for.
        store: number of the STORE.
        key: our number of the request whose chunks it saves; 0 for an orphan's.
        group: layer group.
        lot: what the STORE reads, until it is known to have ended.
    """

    purpose: Purpose
    store: int
    key: int = 0
    group: int = 0
    lot: Lot | None = None

    @property
    def who(self) -> About:
        """Whose it is, for a log line."""
        return About(request=self.key)


class Tickets:
    """Requests in flight and orphans."""

    def __init__(self) -> None:
        """Starts without any."""
        self._in_flight: dict[int, Ticket] = {}
        self._orphans: deque[Ticket] = deque()
        self._quarantine: list[Lot] = []
        self._again_at_s = 0.0

    def __bool__(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._in_flight)

    @property
    def num_orphans(self) -> int:
        """STOREs that are to be withdrawn."""
        return len(self._orphans)

    def sent(self, number: int, ticket: Ticket) -> None:
        """A request went out.

        Args:
            number: by which its completion is known.
            ticket: what it is.
        """
        self._in_flight[number] = ticket

    def find(self, number: int) -> Ticket | None:
        """What a completion is about; it stays in flight."""
        return self._in_flight.get(number)

    def answered(self, number: int) -> None:
        """A request was answered, with whatever it was."""
        del self._in_flight[number]

    def next_orphan(self, now_s: float) -> Ticket | None:
        """The STORE to withdraw now, or None; call ``withdrawing`` when its CANCEL is out.

        Args:
            now_s: monotonic clock, seconds.
        """
        return self._orphans[0] if self._orphans and now_s >= self._again_at_s else None

    def withdrawing(self, number: int) -> None:
        """The CANCEL of ``next_orphan`` went out.

        Args:
            number: by which its completion is known.
        """
        self._in_flight[number] = self._orphans.popleft()

    def orphan(self, store: int, lot: Lot | None, again_at_s: float = 0.0) -> None:
        """A STORE is to be withdrawn.

        Args:
            store: its number.
            lot: what it may still read.
            again_at_s: no CANCEL before this time, monotonic clock.
        """
        self._again_at_s = max(self._again_at_s, again_at_s)
        self._enter([Ticket(Purpose.WITHDRAW, store, lot=lot)])

    def lose(self, stores: Iterable[int], is_same: bool) -> None:
        """Nothing in flight will be answered any more.

        Args:
            stores: further STOREs that were not settled.
            is_same: the registration stands, so the server may have seen what was sent; else
                nothing of it can be committed, but what was lent may still be read.
        """
        given_up = [*self._orphans, *self._in_flight.values()]
        self._orphans.clear()
        self._in_flight.clear()
        lots: dict[int, Lot | None] = {}
        for ticket in given_up:
            lots[ticket.store] = lots.get(ticket.store) or ticket.lot
        if is_same:
            numbers = sorted({*stores, *lots})
            self._enter([Ticket(Purpose.WITHDRAW, n, lot=lots.get(n)) for n in numbers])
        else:
            self._quarantine += [lot for lot in lots.values() if lot is not None]

    def _enter(self, orphans: Iterable[Ticket]) -> None:
        self._orphans += orphans
        while len(self._orphans) > MAX_ORPHANS:  # the oldest expire at the server by themselves
            lot = self._orphans.popleft().lot
            self._quarantine += [] if lot is None else [lot]

    def registered(self) -> list[Lot]:
        """Another registration stands: what was lent under those before can be read no more.

        Returns:
            The lots of it.
        """
        lots, self._quarantine = self._quarantine, []
        return lots
