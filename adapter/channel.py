"""A thread's own line to the server: calls with a deadline, and several requests in flight.

Must not know: registration, the side socket, mappings: the keeper does those. One channel belongs
to one thread, the first that uses it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import zmq

from adapter.breaker import Breaker
from adapter.dealer import Dealer
from adapter.journal import Journal
from adapter.membership import Access, Joined, Membership
from protocol.errors import (
    REJOIN,
    ErrorCode,
    KvkeepError,
    ReplyError,
    ReplyMalformedError,
    UnreachableError,
)
from protocol.frames import Reply
from protocol.ids import InstanceId
from protocol.messages import Body, Request

MAX_IN_FLIGHT: Final = 48
"""Submitted requests at most; the server takes 64 per connection."""

GRACE_S: Final = 0.5
"""A submitted request may be answered with DEADLINE_EXCEEDED this long after its time."""

SUBMIT_CONNECT_S: Final = 0.5
"""Longest wait for a new connection in ``submit``, which no hook of the host calls."""

_LOOK_S: Final = 0.02
"""While waiting for a reply: how often to look whether the server is gone."""


@dataclass(frozen=True)
class Completion:
    """How a submitted request ended.

    Attributes:
        ticket: from ``Channel.submit``.
        body: the reply, or None.
        error: ReplyError (the server refused) or UnreachableError (no reply: it is unknown
            whether the server did it), or None.
    """

    ticket: int
    body: Body | None
    error: KvkeepError | None


@dataclass(frozen=True)
class _Submitted:
    ticket: int
    body: Request
    give_up_s: float


@dataclass(frozen=True)
class ChannelSetup:
    """What a link gives its channels.

    Attributes:
        context: ZMQ context of the link.
        membership: the current registration.
        breaker: shared by all channels.
        journal: counters.
        instance: the engine.
        client: name for the server's log.
        call_budget_s: default time of a call.
        on_doubt: told the serial of a registration that the server does not know.
        on_close: told when the channel was closed.
    """

    context: zmq.Context[Any]
    membership: Membership
    breaker: Breaker
    journal: Journal
    instance: InstanceId
    client: str
    call_budget_s: float
    on_doubt: Callable[[int], None]
    on_close: Callable[[], None]


class Channel:
    """One DEALER connection, opened when it is needed and renewed after every time-out.

    Use separate channels for calls of a few milliseconds and for stores: a time-out of one request
    ends the connection, and with it whatever else is in flight on it.
    """

    def __init__(self, setup: ChannelSetup) -> None:
        """Opens nothing yet. ``Link.open_channel`` makes channels."""
        self._setup = setup
        self._pid = os.getpid()
        self._thread: int | None = None
        self._dealer: Dealer | None = None
        self._serial = 0
        self._in_flight: dict[int, _Submitted] = {}
        self._ended: list[Completion] = []
        self._next_ticket = 1
        self._is_closed = False

    @property
    def num_in_flight(self) -> int:
        """Submitted requests without a completion yet."""
        return len(self._in_flight)

    def call(
        self, body: Request, timeout_s: float | None = None, joined: Joined | None = None
    ) -> Body:
        """Asks and waits for the reply.

        Args:
            body: the request; its session must be the current ``Joined.session``.
            timeout_s: whole time for it, a new connection included; None for the link's
                ``call_budget_s``.
            joined: the registration that the request is about; the next server's session may
                have the same number, and its answer would be taken for this one's.

        Returns:
            The reply's body, of the type that belongs to the operation.

        Raises:
            ReplyError: the server refused; nothing happened there.
            UnreachableError: no reply in time, or at once while the breaker is open or the link
                has not joined. Whether the server did it is unknown after a time-out.
            RuntimeError: called from a second thread, or after ``close``.
        """
        budget_s = self._setup.call_budget_s if timeout_s is None else timeout_s
        end_s = time.monotonic() + budget_s
        access = self._enter(joined)
        if budget_s <= 0:
            raise UnreachableError(ErrorCode.DEADLINE_EXCEEDED, "no time is left for the call")
        try:
            return self._ask(access, body, end_s)
        except ReplyError as error:
            # The server gave this connection up, before any effect: a fresh one may ask again.
            if error.code != ErrorCode.UNAUTHENTICATED:
                raise
            return self._ask(access, body, end_s)

    def _ask(self, access: Access, body: Request, end_s: float) -> Body:
        dealer = self._connected(access, end_s)
        seq = self._send(dealer, body, end_s, end_s - time.monotonic())
        while True:
            reply = self._receive(dealer, end_s)
            if reply is None:
                raise self._lost("call_timeouts", f"{body.op.name} was not answered in time")
            if reply.seq == seq:
                return self._result(reply, body, access)
            self._complete(reply, access)

    def submit(self, body: Request, timeout_s: float, joined: Joined | None = None) -> int:
        """Sends a request without waiting.

        Args:
            body: the request.
            timeout_s: the server answers within this time (DEADLINE_EXCEEDED at the latest); half
                a second later it counts as not answered.
            joined: the registration that the request is about.

        Returns:
            A ticket; exactly one Completion with it comes out of ``poll``.

        Raises:
            UnreachableError: as in ``call``; also when 48 requests are in flight already.
            RuntimeError: called from a second thread, or after ``close``.
        """
        access = self._enter(joined)
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            raise UnreachableError(
                ErrorCode.BUSY, f"{MAX_IN_FLIGHT} requests of this channel are in flight already"
            )
        now_s = time.monotonic()
        connect_end_s = now_s + min(timeout_s, SUBMIT_CONNECT_S)
        dealer = self._connected(access, connect_end_s)
        seq = self._send(dealer, body, connect_end_s, timeout_s)
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._in_flight[seq] = _Submitted(ticket, body, now_s + timeout_s + GRACE_S)
        return ticket

    def poll(self, wait_s: float) -> list[Completion]:
        """Collects what has ended.

        Args:
            wait_s: longest wait for the first completion; 0 to look only.

        Returns:
            Completions, in the order in which they ended; empty after ``wait_s``, or at once when
            nothing is in flight.

        Raises:
            RuntimeError: called from a second thread.
        """
        self._check_owner()
        end_s = time.monotonic() + wait_s
        while True:
            self._collect()
            left_s = end_s - time.monotonic()
            if self._ended or not self._in_flight or left_s <= 0 or self._dealer is None:
                ended, self._ended = self._ended, []
                return ended
            self._dealer.wait(min(left_s, _LOOK_S))

    def give_up(self) -> None:
        """Ends the connection; what is in flight is not waited for, nor told, any more.

        Raises:
            RuntimeError: called from a second thread, or after ``close``.
        """
        self._check_owner()
        self._drop("its owner gave it up")
        self._ended.clear()

    def hand_over(self) -> None:
        """Lets the next thread that calls own the channel; the present owner is done with it.

        So a connection can be made while the engine starts, before the thread that will use it
        exists. ZMQ allows it across a memory barrier, which starting a thread is.

        Raises:
            RuntimeError: called from a thread that is not the owner.
        """
        self._check_owner()
        self._thread = None

    def close(self) -> None:
        """Closes the connection; what is in flight is lost. Idempotent."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        self._drop("the channel was closed")
        self._setup.on_close()

    def _check_owner(self) -> None:
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        if self._thread != here:
            raise RuntimeError("a channel belongs to one thread; open another one for this thread")
        if self._is_closed:
            raise RuntimeError("this channel was closed")

    def _enter(self, joined: Joined | None) -> Access:
        """The snapshot to work with, or an error at once."""
        if self._pid != os.getpid():
            raise UnreachableError(
                ErrorCode.UNAVAILABLE,
                "this process was forked from the link's: it needs a link of its own",
            )
        self._check_owner()
        access = self._setup.membership.access
        if access is None:
            self._setup.journal.count("calls_not_joined")
            raise UnreachableError(ErrorCode.UNAVAILABLE, "not registered with a server now")
        if joined is not None and access.joined is not joined:
            self._setup.journal.count("calls_outdated")
            raise UnreachableError(ErrorCode.UNAVAILABLE, "registered anew since")
        if self._setup.breaker.is_open:
            self._setup.journal.count("calls_refused_by_breaker")
            raise UnreachableError(
                ErrorCode.UNAVAILABLE, f"the breaker is open: {self._setup.breaker.reason}"
            )
        return access

    def _connected(self, access: Access, end_s: float) -> Dealer:
        """A greeted connection to the server of this snapshot."""
        if self._dealer is not None and self._serial == access.serial:
            return self._dealer
        self._drop("the server is another one now")
        setup = self._setup
        try:
            dealer = Dealer(setup.context, access.endpoint, setup.instance, setup.client)
        except zmq.ZMQError as error:
            raise UnreachableError(ErrorCode.UNAVAILABLE, f"no connection: {error}") from error
        self._dealer, self._serial = dealer, access.serial
        setup.journal.count("channel_connections")
        seq = self._until_sent(lambda: dealer.say_hello(access.token), dealer, end_s)
        reply = self._receive(dealer, end_s)
        if reply is None:
            raise self._lost("call_timeouts", "HELLO was not answered in time")
        if reply.error is not None or reply.seq != seq:
            setup.on_doubt(access.serial)
            raise self._lost("hello_refused", f"HELLO was refused: {reply.error}")
        if dealer.welcome is None or dealer.welcome.epoch != access.joined.epoch:
            setup.on_doubt(access.serial)
            raise self._lost("hello_of_another_epoch", "another incarnation answered HELLO")
        return dealer

    def _send(self, dealer: Dealer, body: Request, end_s: float, timeout_s: float) -> int:
        return self._until_sent(lambda: dealer.send(body, timeout_s), dealer, end_s)

    def _until_sent(self, send: Callable[[], int | None], dealer: Dealer, end_s: float) -> int:
        while True:
            seq = send()
            if seq is not None:
                return seq
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not dealer.wait(left_s, to_send=True):
                raise self._lost("connect_timeouts", "no connection to the server in time")

    def _receive(self, dealer: Dealer, end_s: float) -> Reply | None:
        while True:
            left_s = end_s - time.monotonic()
            dealer.wait(min(max(left_s, 0.0), _LOOK_S))
            try:
                reply = dealer.receive()
            except ReplyMalformedError as error:
                raise self._lost("malformed_replies", error.message) from error
            if reply is not None:
                return reply
            if left_s <= 0:
                return None
            access = self._setup.membership.access
            if access is None or access.serial != self._serial:
                self._drop("the server is gone")
                raise UnreachableError(ErrorCode.UNAVAILABLE, "the server is gone")

    def _lost(self, kind: str, reason: str) -> UnreachableError:
        """Gives up the connection and opens the breaker."""
        self._setup.journal.count(kind)
        self._setup.breaker.trip(reason, time.monotonic_ns())
        self._drop(reason)
        return UnreachableError(ErrorCode.DEADLINE_EXCEEDED, reason)

    def _drop(self, reason: str) -> None:
        if self._dealer is not None:
            self._dealer.close()
            self._dealer = None
        for submitted in self._in_flight.values():
            error = UnreachableError(ErrorCode.UNAVAILABLE, reason)
            self._ended.append(Completion(submitted.ticket, None, error))
        self._in_flight.clear()

    def _result(self, reply: Reply, body: Request, access: Access) -> Body:
        if reply.error is not None:
            self._heed(reply.error, body, access)
            raise reply.error
        if reply.body is None:
            raise self._lost("malformed_replies", "a reply without a body")
        return reply.body

    def _complete(self, reply: Reply, access: Access | None) -> None:
        submitted = self._in_flight.pop(reply.seq, None)
        if submitted is None:
            return
        self._ended.append(Completion(submitted.ticket, reply.body, reply.error))
        if reply.error is not None and access is not None:
            self._heed(reply.error, submitted.body, access)

    def _heed(self, error: ReplyError, body: Request, access: Access) -> None:
        """Has the keeper join again when the server does not know this registration."""
        if error.code not in REJOIN:
            return
        session = getattr(body, "session", access.joined.session)
        if error.code == ErrorCode.UNKNOWN_SESSION and session != access.joined.session:
            return  # the caller used an outdated session; the registration is fine
        if error.code == ErrorCode.UNAUTHENTICATED:
            self._drop(error.message)  # HELLO on a fresh connection settles whether we are known
            return
        self._setup.on_doubt(access.serial)

    def _collect(self) -> None:
        """Takes in replies, and gives up what is overdue or was asked of a server now gone."""
        access = self._setup.membership.access
        dealer = self._dealer
        if dealer is not None and (access is None or access.serial != self._serial):
            self._drop("the server is gone")
            return
        while dealer is not None and dealer is self._dealer:
            try:
                reply = dealer.receive()
            except ReplyMalformedError as error:
                self._lost("malformed_replies", error.message)
                return
            if reply is None:
                break
            self._complete(reply, access)
        now_s = time.monotonic()
        if any(now_s >= submitted.give_up_s for submitted in self._in_flight.values()):
            self._lost("submit_timeouts", "a submitted request was not answered in time")
