"""One stay with one server: from the side connection to its end.

Welcome, HELLO, registration; what follows is ``duties``. Whatever ends the stay is raised as
``UnreachableError``; the keeper then begins another one.

Must not know: threads, the pause between stays. Runs in: the keeper's thread.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from typing import Any, Final

import zmq

from adapter.calls import Calls
from adapter.duties import FAREWELL_S, Duties
from adapter.enrolment import Enrolment, Registration, Stage
from adapter.household import Former, Household, LiveRequests, VisitEndedError
from adapter.journal import NEWS_EVERY_S
from adapter.mapper import MapReport, Origin
from adapter.membership import Access, Joined
from adapter.side import SideConnection
from protocol import endpoint as endpoints
from protocol import limits, side
from protocol.errors import ErrorCode, KvkeepError, ReplyError, UnreachableError, code_of
from protocol.ids import ArenaId, Epoch, Fingerprint, SessionId, Token
from protocol.messages import VERSION_MAJOR, VERSION_MINOR, Body, HelloReply, Unregister
from protocol.namespace import fingerprint

MAX_EARLY_EXTENTS: Final = 4096
_PACKETS_PER_TURN: Final = 64


class Visit:
    """One side connection and what hangs on it.

    Attributes:
        serial: number of the stay within the link.
        registration: what is registered; None for not yet.
        duties: once the registration was accepted, else None.
    """

    def __init__(
        self,
        household: Household,
        serial: int,
        path: str,
        former: Former | None,
        is_told: bool = False,
    ) -> None:
        """Connects and says who we are.

        Args:
            household: of the link.
            serial: number of the stay.
            path: of the side socket.
            former: the registration before.
            is_told: whether a tcp server named the path.

        Raises:
            UnreachableError: nobody is there, or somebody who is not to be trusted.
        """
        self.serial = serial
        self.registration: Registration | None = None
        self.duties: Duties | None = None
        self.epoch: Epoch | None = None
        self.former = former
        self.has_ended_former = False
        self._house = household
        self._calls: Calls | None = None
        self._welcome: side.Welcome | None = None
        self._enrolment: Enrolment | None = None
        self._said: KvkeepError | None = None
        self._early: list[tuple[side.ExtentGiven, int]] = []
        self._is_leaving = False
        self._has_other: bool | None = None
        self._is_ending_former = False
        self._side = SideConnection(path, is_told)
        self._welcome_until_ns = time.monotonic_ns() + int(household.connect_timeout_s * 1e9)
        hello = side.SideHello(
            major=VERSION_MAJOR, minor=VERSION_MINOR, instance=household.instance
        )
        try:
            self._side.send(hello)
        except UnreachableError:
            pass  # whoever hung up already may have said why: the first turn reads it

    @property
    def is_welcome(self) -> bool:
        """Whether the server took the side connection."""
        return self._welcome is not None

    @property
    def gave_pool(self) -> bool:
        """Whether the server was given the pool, so that it may still read it."""
        return self._enrolment is not None and self._enrolment.gave_pool

    @property
    def has_left(self) -> bool:
        """Whether nothing of the server touches the pool any more."""
        if self.duties is not None:
            return self.duties.has_left
        if self.former is not None:
            return False
        enrolment = self._enrolment
        return enrolment is None or enrolment.stage == Stage.REFUSED or not enrolment.gave_pool

    @property
    def left_behind(self) -> SessionId | None:
        """The session that stands at the server when this stay breaks off, if one does."""
        if self.duties is not None:
            return None if self.duties.has_left else self.duties.origin.session
        in_the_way = None if self._enrolment is None else self._enrolment.in_the_way
        return None if in_the_way is None else SessionId(in_the_way)

    @property
    def may_leave(self) -> bool:
        """Whether ``has_left`` may become true by waiting, once this stay was told to leave."""
        if self.duties is not None or self.former is not None:
            return True
        is_asking = (Stage.OFFERED, Stage.ACCEPTED, Stage.ASKED)
        return self._enrolment is not None and self._enrolment.stage in is_asking

    def polled(self, now_ns: int) -> list[tuple[Any, int]]:
        """Sockets to poll, each with its event mask.

        Args:
            now_ns: monotonic clock.
        """
        watched: list[tuple[Any, int]] = [(self._side.fileno(), zmq.POLLIN)]
        if self._calls is not None:
            watched.append((self._calls.dealer.socket, self._calls.poll_events(now_ns)))
        return watched

    def next_ns(self, now_ns: int) -> int | None:
        """When ``turn`` has something to do even if nothing arrives; None for never.

        Args:
            now_ns: monotonic clock.
        """
        calls = self._calls
        if calls is None:
            return self._welcome_until_ns
        times = [calls.next_ns(now_ns)]
        watch = self.former.watch if self.former is not None and calls.has_room() else None
        if watch is not None:
            times.append(self._house.formers.next_ns(now_ns, watch))
        if self._enrolment is not None and calls.greeted:
            times.append(self._enrolment.next_ns())
        if self.duties is not None:
            times.append(self.duties.next_ns(self._is_leaving))
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def turn(
        self, now_ns: int, registration: Registration | None, live_requests: LiveRequests | None
    ) -> None:
        """Takes in what arrived and does what is due.

        Args:
            now_ns: monotonic clock.
            registration: what the link wants registered now.
            live_requests: in the scheduler's process, else None.

        Raises:
            UnreachableError: the stay is over.
        """
        self._take_packets()
        calls = self._calls
        if self._welcome is not None:
            self._tell_of_formers()
        if calls is None:
            if now_ns >= self._welcome_until_ns:
                raise VisitEndedError(ErrorCode.DEADLINE_EXCEEDED, "the server did not say welcome")
            return
        calls.turn(now_ns)
        if calls.refusal is not None:
            raise VisitEndedError(calls.refusal.code, calls.refusal.message)
        if self._house.membership.is_doubted(self.serial):
            raise VisitEndedError(ErrorCode.UNKNOWN_SESSION, "the server forgot this registration")
        if self.duties is None:
            self._enrol(calls, now_ns, registration)
        elif self._is_leaving:
            self.duties.ask_to_leave(now_ns)
        else:
            self.duties.turn(now_ns, live_requests)

    # --- the side socket -------------------------------------------------------------------

    def _take_packets(self) -> None:
        for _ in range(_PACKETS_PER_TURN):
            received = self._side.receive()
            if received is None:
                return
            packet, fd = received
            if isinstance(packet, side.ExtentGiven) and fd is not None:
                self._extent_given(packet, fd)
            elif isinstance(packet, side.ExtentTaken):
                self._extent_taken(packet)
            elif isinstance(packet, side.Welcome):
                self._on_welcome(packet)
            elif isinstance(packet, side.PoolAccepted) and self._enrolment is not None:
                self._enrolment.pool_accepted(packet.pool)
            elif isinstance(packet, side.SideError):
                self._on_side_error(packet)

    def _on_welcome(self, welcome: side.Welcome) -> None:
        if self._welcome is not None:
            raise VisitEndedError(ErrorCode.MALFORMED, "a second welcome")
        self._welcome = welcome
        house = self._house
        try:
            self._calls = Calls(
                house.context,
                endpoints.parse(welcome.endpoint).url,
                Token(welcome.token),
                welcome.epoch,
                house.instance,
                house.client,
                house.breaker,
                house.journal,
            )
        except (KvkeepError, zmq.ZMQError) as error:
            raise VisitEndedError(
                ErrorCode.INVALID_URL, f"the server names an unusable endpoint: {error}"
            ) from error
        self.epoch = Epoch(welcome.epoch)
        house.formers.welcome(self.epoch, Token(welcome.token))
        if self.former is not None and self.former.epoch != welcome.epoch:
            self.former = None  # it ended with its server

    def _tell_of_formers(self) -> None:
        for drained in self._house.formers.news(self.serial):
            self._side.send(drained)
            self._house.journal.count("drains_said")

    def _on_side_error(self, said: side.SideError) -> None:
        self._house.journal.report("side_errors", f"the server said: {said.message}")
        if self._welcome is None:
            raise VisitEndedError(code_of(said.code), said.message)
        if self._enrolment is not None:
            self._enrolment.side_error(said)

    def _extent_given(self, given: side.ExtentGiven, fd: int) -> None:
        if self.duties is not None:
            self.duties.extent_given(given, fd)
            return
        # The side socket may be faster than the reply to REGISTER_KV_CACHE.
        self._early.append((given, fd))
        if len(self._early) > MAX_EARLY_EXTENTS:
            raise VisitEndedError(ErrorCode.LIMIT_EXCEEDED, "extents before a registration")

    def _extent_taken(self, taken: side.ExtentTaken) -> None:
        if self.duties is not None:
            self.duties.extent_taken(taken)
            return
        for index, (given, fd) in enumerate(self._early):
            if (given.session, given.extent) == (taken.session, taken.extent):
                os.close(fd)
                del self._early[index]
                return

    # --- registration ----------------------------------------------------------------------

    def _enrol(self, calls: Calls, now_ns: int, registration: Registration | None) -> None:
        enrolment = self._enrolment
        if enrolment is None:
            if not self._is_former_gone(calls) or registration is None or self._is_leaving:
                return
            enrolment = Enrolment(registration, self._side, calls)
            self.registration, self._enrolment = registration, enrolment
        if self._is_leaving and enrolment.stage == Stage.IDLE:
            return
        enrolment.turn(now_ns)
        if enrolment.must_rejoin and enrolment.error is not None:
            raise VisitEndedError(enrolment.error.code, enrolment.error.message)
        if enrolment.in_the_way is not None:
            raise VisitEndedError(ErrorCode.DUPLICATE, "a session of this rank is in the way")
        hello = calls.dealer.welcome
        if enrolment.stage == Stage.ENROLLED and hello is not None:
            self._enter(enrolment, calls, hello, now_ns)
        elif enrolment.stage == Stage.REFUSED and enrolment.error is not None:
            if not self._is_replaced(enrolment.registration, enrolment.error):
                self._refused(enrolment.error)
        elif enrolment.stage == Stage.IDLE and enrolment.error is not self._said:
            self._put_off(enrolment.error)

    def _is_replaced(self, registration: Registration, error: KvkeepError) -> bool:
        """Whether another registration takes the place of a refused one; asked once for each.

        The keeper then ends this stay, in which nothing was accepted, and begins another.
        """
        on_refused = registration.on_refused
        if on_refused is None or self._is_leaving:
            return False
        if self._has_other is None:
            self._has_other = on_refused(error)
        return self._has_other

    def _is_former_gone(self, calls: Calls) -> bool:
        """Ends our earlier session with the same server, once nothing is loaded under it.

        Nothing more is offered under it: the server lets no engine read of which a rank's side
        connection is gone.
        """
        former = self.former
        if former is None or self._is_ending_former:
            return former is None

        def done(body: Body | None, error: KvkeepError | None) -> None:
            self._is_ending_former = False
            # A server that does not know that session has nothing left of it either.
            if error is None or (isinstance(error, ReplyError) and not error.retryable):
                self.former, self.has_ended_former = None, True

        # When the link is closed nothing is loaded any more, whatever was offered.
        if self._is_leaving or self._house.formers.is_over(former.watch):
            body = Unregister(session=former.session)
            self._is_ending_former = calls.send(body, FAREWELL_S, done)
        return False

    def _enter(self, enrolment: Enrolment, calls: Calls, hello: HelloReply, now_ns: int) -> None:
        welcome, reply = self._welcome, enrolment.reply
        if welcome is None or reply is None:
            return
        joined = Joined(
            epoch=Epoch(welcome.epoch),
            arena=ArenaId(welcome.arena),
            session=SessionId(reply.session),
            fingerprint=Fingerprint(reply.fingerprint),
            max_blocks=min(hello.max_blocks, limits.MAX_BLOCKS_PER_MESSAGE),
            namespace=enrolment.registration.namespace,
            rank=enrolment.registration.rank,
            capabilities=frozenset(hello.capabilities),
        )
        origin = Origin(joined.epoch, joined.arena, joined.session, joined.fingerprint)
        self.duties = Duties(self._house, calls, self.serial, origin, hello.heartbeat_s)
        self._house.table.set_current(joined.epoch)
        if not self._is_called_otherwise(joined) and not self._is_leaving:
            url = endpoints.parse(welcome.endpoint).url
            self._house.membership.enter(Access(self.serial, url, Token(welcome.token), joined))
            self._say_registered(url, enrolment.registration, joined)
        early, self._early = self._early, []
        for given, fd in early:
            self.duties.extent_given(given, fd)

    def _is_called_otherwise(self, joined: Joined) -> bool:
        """Whether the server understood the namespace as another one; the stay is left then.

        Its chunks would be shared with engines whose bytes are not ours.
        """
        ours = fingerprint(joined.namespace)
        if joined.fingerprint == ours:
            return False
        self._refused(
            ReplyError(
                ErrorCode.UNSUPPORTED,
                f"it calls this engine's namespace {joined.fingerprint.hex()} where {ours.hex()} "
                "is right; install matching versions of kvkeep on both sides",
            )
        )
        self.leave()
        return True

    def _say_registered(self, url: str, registration: Registration, joined: Joined) -> None:
        num_pages = max((pool.num_pages for pool in registration.pools), default=0)
        page_bytes = sum(group.page_bytes for group in joined.namespace.groups)
        self._house.journal.report(
            "registrations",
            f"kvkeep: registered at {url}: {num_pages} pages of {page_bytes} bytes, "
            f"namespace {joined.fingerprint.hex()}",
            logging.INFO,
            NEWS_EVERY_S,
            after="stays_ended",
        )

    def _refused(self, error: KvkeepError) -> None:
        if self._house.membership.refusal is None:
            self._house.journal.report(
                "registrations_refused",
                f"the server refused this engine's KV cache, so it stays uncached: {error}",
            )
            self._house.membership.refuse(error)

    def _put_off(self, error: KvkeepError | None) -> None:
        """Says why the engine is uncached for now; after NO_ROOM also what it takes (P17)."""
        self._said = error
        if isinstance(error, ReplyError):
            self._house.journal.report(
                "registrations_put_off",
                f"the server cannot take this engine's KV cache yet, trying again: {error}",
            )

    def extents_done(self, reports: Iterable[MapReport]) -> None:
        """The mapper has mapped or unmapped extents.

        Args:
            reports: all of them.
        """
        if self.duties is not None:
            self.duties.extents_done(reports)

    # --- the end ---------------------------------------------------------------------------

    def leave(self) -> None:
        """Begins to unregister; ``has_left`` tells when that is done."""
        self._is_leaving = True

    def close(self) -> None:
        """Closes both connections. Idempotent."""
        for _, fd in self._early:
            os.close(fd)
        self._early.clear()
        if self._calls is not None:
            self._calls.close()
        self._side.close()
