"""Loads whose copies are queued on a device's stream, until an event behind them is done.

Until then their extents stay held and their leases unreleased, for the device still reads there;
whatever becomes of the server, and also when nobody waits any more. Then the tripwire is asked, and
whoever is concerned is told. The loader's thread polls, so that an idle engine gives back, too; the
hooks look as well, so that a failure is raised as soon as it can be known. Nothing waits for the
device.

Must not know: the host's classes, pages, sockets. Any thread may look; the executor's thread adds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from adapter.copy import LoadError
from adapter.loadbatches import DeviceLoad
from adapter.loader import STREAM_LIMIT_S, again
from adapter.saveentry import Mark
from protocol.device.interface import DeviceError
from protocol.errors import ErrorCode

_FIRST_NAP_S: Final = 0.001
_LONGEST_NAP_S: Final = 0.02
"""An engine at work looks by its hooks. Each look takes its thread the GIL for some 50 µs."""
_LATE_NAP_S: Final = 0.05
"""Between looks at a load that has failed already, but may still be read by the device."""


_FOR_GOOD: Final[list[Flight]] = []
"""What ended engines left: the device may read it still, so nobody may let go of it."""


class NoEvent:
    """Instead of an event that could not be recorded behind queued copies: none sees their end."""

    def __init__(self, error: Exception) -> None:
        """Keeps why."""
        self._error = error

    def query(self) -> bool:
        """Never answers.

        Raises:
            Exception: why there is no event.
        """
        raise self._error


class Flight:
    """Loads that end together.

    Attributes:
        has_failed: whoever is concerned was told; the device may still read.
        is_over: nothing of it is held any more.
    """

    def __init__(
        self,
        loads: Sequence[DeviceLoad],
        holding: ExitStack,
        event: Mark,
        let_go: Callable[[], None],
        tell: Callable[[LoadError | None], None],
        limit_s: float,
    ) -> None:
        """Takes over what is held.

        Args:
            loads: their copies are queued.
            holding: lets go of their extents.
            event: behind the copies.
            let_go: gives back their leases; called once, when the device reads nothing any more.
            tell: how it went; called once, on the thread that found out, under the flights' lock.
            limit_s: longest time until the load counts as failed.
        """
        self._loads = loads
        self._holding = holding
        self._event = event
        self._let_go = let_go
        self._tell = tell
        self._late_at_s = time.monotonic() + limit_s
        self._limit_s = limit_s
        self.has_failed = False
        self.is_over = False

    def look(self) -> None:
        """Ends it if the copies are done. The flights call it, one thread at a time."""
        try:
            is_done = self._event.query()
        except Exception as error:  # noqa: BLE001 - whatever it says, these pages are not filled
            self.fail(LoadError(ErrorCode.COPY_FAILED, f"the device failed a load: {error!r}"))
            # Only a context that is lost certainly reads no more.
            if isinstance(error, DeviceError) and error.is_sticky:
                self._end()
            return
        if is_done:
            self._land()
        elif not self.has_failed and time.monotonic() > self._late_at_s:
            what = f"a load was not done by the device within {self._limit_s:g} s"
            self.fail(LoadError(ErrorCode.DEADLINE_EXCEEDED, what))

    def _land(self) -> None:
        failure: LoadError | None = None
        try:
            for load in self._loads:
                load.check()
        except LoadError as error:
            failure = error
        self._end()
        if failure is not None:
            self.fail(failure)
        elif not self.has_failed:
            self._tell(None)

    def fail(self, failure: LoadError) -> None:
        """Tells of a failure, the first one only; what is held stays held until the copies end."""
        if not self.has_failed:
            self.has_failed = True
            self._tell(failure)

    def _end(self) -> None:
        self.is_over, self._loads = True, ()
        self._holding.close()
        self._let_go()


class Flights:
    """All flights of one rank; a failure among them is never forgotten."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = threading.Lock()
        self._flying: list[Flight] = []
        self._failure: LoadError | None = None

    @property
    def num_flying(self) -> int:
        """Flights that hold something."""
        return len(self._flying)

    def add(self, flight: Flight) -> None:
        """Takes in a flight."""
        with self._lock:
            self._flying.append(flight)

    def fail(self, failure: LoadError) -> None:
        """A load failed. Any thread, also one that holds the lock (``Flight``'s ``tell``)."""
        self._failure = self._failure or failure

    def settle(self) -> None:
        """Ends every flight whose copies are done. Does not wait for the device, does not raise."""
        if not self._flying:
            return
        with self._lock:
            for flight in self._flying:
                flight.look()
            self._flying = [flight for flight in self._flying if not flight.is_over]

    def check(self) -> None:
        """Raises a load's failure.

        Raises:
            LoadError: some load failed, now or earlier.
        """
        if self._failure is not None:
            raise again(self._failure)


class LoadedMark:
    """A point behind a forward: passed when the stream is, and what the forward read was good.

    Else pages computed on bad ones could be published before the next hook raises.
    """

    def __init__(self, mark: Mark, flights: Flights) -> None:
        """Takes the point.

        Args:
            mark: behind the forward, and so behind the copies of all its loads.
            flights: those loads among them.
        """
        self._mark = mark
        self._flights = flights

    def query(self) -> bool:
        """Whether it is passed.

        Raises:
            LoadError: some load failed.
        """
        if not self._mark.query():
            return False
        self._flights.settle()  # with the point passed, the copies before it are done
        self._flights.check()
        return True


class Landing:
    """Polls until one flight is over. A job of the loader."""

    def __init__(
        self, flights: Flights, flight: Flight, patience_s: float = STREAM_LIMIT_S
    ) -> None:
        """Looks at nothing yet.

        Args:
            flights: it looks at all of them, for they end in no particular order.
            flight: the one.
            patience_s: after the loader was stopped, the longest time until what still flies stays
                held for good.
        """
        self._flights = flights
        self._flight = flight
        self._patience_s = patience_s

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Polls. A stopped loader still lets the device end, or what it reads would be unmapped."""
        nap_s, give_up_s = _FIRST_NAP_S, None
        while True:
            self._flights.settle()
            if self._flight.is_over:
                return
            if is_stopped():
                now_s = time.monotonic()
                give_up_s = now_s + self._patience_s if give_up_s is None else give_up_s
                if self._flight.has_failed or now_s > give_up_s:
                    _FOR_GOOD.append(self._flight)
                    return
            time.sleep(nap_s)
            longest_s = _LATE_NAP_S if self._flight.has_failed else _LONGEST_NAP_S
            nap_s = min(2 * nap_s, longest_s)
