"""The keeper: a daemon thread that keeps this process registered with whatever server is there.

It begins a stay, drives it, and after its end pauses (50 ms, doubling to 2 s) and begins another.
It never raises: what goes wrong is counted and tried again. When the link is closed it stays on,
and with it the pool, until a server that may read the pool has acknowledged the end (fault P12).

Must not know: what the engine does. Its thread owns the side socket, its own DEALER and all of the
stay's state; the link talks to it through ``Orders`` and a wake-up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import zmq

from adapter.discovery import Discovery
from adapter.enrolment import Registration
from adapter.household import Former, Household, LiveRequests
from adapter.journal import NEWS_EVERY_S
from adapter.visit import Visit
from adapter.wake import Wake
from protocol.endpoint import Endpoint
from protocol.errors import ErrorCode, KvkeepError
from protocol.ids import Epoch

PAUSE_FIRST_NS: Final = 50_000_000
PAUSE_LAST_NS: Final = 2_000_000_000

SETTLED_NS: Final = 1_000_000_000
"""A stay that was registered for this long makes the next pause short again."""

GONE_NS: Final = 10_000_000_000
"""A closed link whose server nobody has heard of for this long need not wait for it any more."""

_MAX_POLL_MS: Final = 1000

#: Refusals of the whole connection that stay until the server is another one.
_FOR_GOOD: Final = frozenset(
    {
        ErrorCode.VERSION_MISMATCH,
        ErrorCode.UNWATCHABLE_PEER,
        ErrorCode.NO_DESCRIPTORS,
        ErrorCode.NOT_PERMITTED,
    }
)


@dataclass
class Orders:
    """What the link wants of the keeper; each field is replaced as a whole.

    Attributes:
        registration: what to register; None for nothing yet.
        live_requests: in the scheduler's process.
        close_by_ns: unregister and stop; someone waits for that until this time. None to go on.
    """

    registration: Registration | None = None
    live_requests: LiveRequests | None = None
    close_by_ns: int | None = None


@dataclass
class Outcome:
    """How the keeper ended.

    Attributes:
        is_over: set when the thread is about to end.
        is_told: set when it is of no use to wait any longer: it is over, or nobody is there to ask.
        is_acknowledged: no server can touch the pool any more.
    """

    is_over: threading.Event = field(default_factory=threading.Event)
    is_told: threading.Event = field(default_factory=threading.Event)
    is_acknowledged: bool = False


class Keeper:
    """The thread and the state that only it touches."""

    def __init__(
        self,
        household: Household,
        endpoint: Endpoint,
        orders: Orders,
        wake: Wake,
        on_end: Callable[[], None],
    ) -> None:
        """Starts nothing.

        Args:
            household: of the link.
            endpoint: the server's.
            orders: of the link.
            wake: set after each change of the orders and by everything with news.
            on_end: called, on the thread, when its sockets are closed.
        """
        self.outcome = Outcome()
        self._house = household
        self._endpoint = endpoint
        self._orders = orders
        self._wake = wake
        self._on_end = on_end
        self._visit: Visit | None = None
        self._discovery: Discovery | None = None
        self._former: Former | None = None
        self._serial = 0
        self._retry_at_ns = 0
        self._pause_ns = PAUSE_FIRST_NS
        self._joined_at_ns: int | None = None
        self._unsaid_loss = ""
        self._path = ""
        self._read_by: Epoch | None = None
        self._gone_since_ns: int | None = None
        self._thread = threading.Thread(target=self._run, name="kvkeep-keeper", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether it has ended.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self.outcome.is_over.is_set():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - the engine must never notice
                self._house.journal.report("keeper_faults", f"the keeper failed: {error!r}")
                self._end_stay(str(error), time.monotonic_ns())
        self._on_end()

    def _turn(self) -> None:
        now_ns = time.monotonic_ns()
        self._house.formers.tick(now_ns)
        self._house.formers.turn()
        if self._orders.close_by_ns is not None and self._visit is not None:
            self._leave(self._visit)
        try:
            if self._visit is None:
                self._approach(now_ns)
            if self._visit is not None:
                self._attend(self._visit, now_ns)
        except KvkeepError as error:
            self._stay_ended(error, now_ns)
        if self._is_closing(now_ns):
            self._finish()
            return
        self._poll()

    # --- stays -----------------------------------------------------------------------------

    def _approach(self, now_ns: int) -> None:
        """Begins a stay if it is time, after asking a tcp server where its side socket is."""
        is_closing = self._orders.close_by_ns is not None
        if now_ns < self._retry_at_ns or (is_closing and self._former is None):
            return
        house = self._house
        path = self._endpoint.path and self._endpoint.side_path("")
        if not path and is_closing:
            path = self._path  # where that server was
        elif not path:
            if self._discovery is None:
                until_ns = now_ns + int(house.connect_timeout_s * 1e9)
                self._discovery = Discovery(
                    house.context, self._endpoint.url, house.instance, house.client, until_ns
                )
            self._discovery.turn(now_ns)
            if self._discovery.path is None:
                return
            path = self._discovery.path
            self._drop_discovery()
        self._serial += 1
        self._path = path
        is_told = not self._endpoint.path
        self._visit = Visit(house, self._serial, path, self._former, is_told)
        self._gone_since_ns = None

    def _attend(self, visit: Visit, now_ns: int) -> None:
        visit.extents_done(self._house.mapper.take_reports())
        wanted = self._orders.registration
        is_closing = self._orders.close_by_ns is not None
        is_other = visit.registration is not None and visit.registration is not wanted
        is_asking = visit.duties is None and visit.may_leave  # the answer names what is to be ended
        if is_other and not (is_closing or is_asking):
            # Over a new side connection: from the end of the old one on nothing is offered under
            # the old registration, and it can be ended when what was offered has been loaded.
            self._end_stay("another registration is wanted", now_ns)
            self._retry_at_ns = now_ns
            return
        visit.turn(now_ns, wanted, self._orders.live_requests)
        if visit.duties is not None and self._joined_at_ns is None:
            self._joined_at_ns = now_ns
            self._unsaid_loss = ""
        if visit.epoch is not None:
            self._former = visit.former
            if visit.epoch != self._read_by or visit.has_ended_former:
                self._read_by = None

    def _leave(self, visit: Visit) -> None:
        self._house.membership.leave()
        visit.leave()

    def _stay_ended(self, error: KvkeepError, now_ns: int) -> None:
        house = self._house
        if error.code in _FOR_GOOD:
            if house.membership.refusal is None:
                house.journal.report("connections_refused", f"no connection to kvkeep: {error}")
            house.membership.refuse(error)
        elif self._joined_at_ns is not None:
            text = f"the kvkeep server is lost: {error}"
            is_said = house.journal.report("stays_ended", text, every_s=NEWS_EVERY_S)
            self._unsaid_loss = "" if is_said else text
        else:
            house.journal.count("approaches_failed")
            # While it stays away, the log's last word must not be that it is there.
            if self._unsaid_loss and house.journal.say(
                "stays_ended", self._unsaid_loss, every_s=NEWS_EVERY_S
            ):
                self._unsaid_loss = ""
        self._end_stay(error.message, now_ns)
        if error.code == ErrorCode.UNKNOWN_SESSION:
            # With the session its leases are gone: nothing to wait for.
            self._former = self._read_by = None

    def _end_stay(self, reason: str, now_ns: int) -> None:
        """Cleans up after a stay or an attempt at one, and plans the next."""
        house, visit = self._house, self._visit
        house.membership.leave()
        house.breaker.trip(reason, now_ns)
        if visit is None and self._gone_since_ns is None:
            self._gone_since_ns = now_ns
        session = None if visit is None else visit.left_behind
        if visit is not None and visit.epoch is not None and session is not None:
            self._former = Former(visit.epoch, session, house.formers.watch(visit.epoch))
        if self._joined_at_ns is not None and now_ns - self._joined_at_ns >= SETTLED_NS:
            self._pause_ns = PAUSE_FIRST_NS
        self._close_visit()
        self._drop_discovery()
        self._retry_at_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, PAUSE_LAST_NS)

    def _close_visit(self) -> None:
        visit, self._visit = self._visit, None
        self._joined_at_ns = None
        if visit is not None:
            if visit.gave_pool:
                self._read_by = None if visit.has_left else visit.epoch
            visit.close()

    def _drop_discovery(self) -> None:
        if self._discovery is not None:
            self._discovery.close()
            self._discovery = None

    # --- closing ---------------------------------------------------------------------------

    def _is_closing(self, now_ns: int) -> bool:
        """Whether all is done that can be done before the end."""
        close_by_ns, visit = self._orders.close_by_ns, self._visit
        if close_by_ns is None:
            return False
        if self._read_by is None and (visit is None or visit.has_left):
            return True
        if self._gone_since_ns is not None:
            self.outcome.is_told.set()
            if now_ns - self._gone_since_ns >= GONE_NS:
                return True
        can_ask = self._former is not None if visit is None else visit.may_leave
        return now_ns >= close_by_ns and not can_ask

    def _finish(self) -> None:
        self._close_visit()
        self._drop_discovery()
        self._house.membership.end()
        self.outcome.is_acknowledged = self._read_by is None
        self.outcome.is_over.set()
        self.outcome.is_told.set()

    # --- waiting ---------------------------------------------------------------------------

    def _poll(self) -> None:
        now_ns = time.monotonic_ns()
        watched: list[tuple[Any, int]] = [(self._wake.fileno(), zmq.POLLIN)]
        close_by_ns, formers = self._orders.close_by_ns, self._house.formers
        times = [None if close_by_ns is None or close_by_ns <= now_ns else close_by_ns]
        times.append(formers.next_ns(now_ns))
        if self._visit is not None:
            watched += self._visit.polled(now_ns)
            times.append(self._visit.next_ns(now_ns))
        elif self._discovery is not None:
            watched.append(self._discovery.polled())
            times.append(self._discovery.until_ns)
        else:
            times.append(self._retry_at_ns)
        due_ns = min((t for t in times if t is not None), default=None)
        timeout_ms = _MAX_POLL_MS
        if due_ns is not None:
            # At least 1 ms: a time that cannot be acted on must not make this thread spin.
            timeout_ms = max(1, min(timeout_ms, -(-(due_ns - now_ns) // 1_000_000)))
        try:
            zmq.zmq_poll(watched, timeout_ms)
        except zmq.ZMQError as error:
            self._house.journal.report("poll_failures", f"poll failed: {error}")
        self._wake.clear()
