"""The keeper's own requests: sent without waiting, answered through callbacks, renewed when late.

It also is the breaker's probe: as long as the breaker is open it asks PING with growing pauses,
and after a time-out it says HELLO on a fresh connection.

Must not know: what the requests are for. Runs in: the keeper's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import zmq

from adapter.breaker import Breaker
from adapter.dealer import Dealer
from adapter.journal import Journal
from protocol.errors import (
    ErrorCode,
    KvkeepError,
    ReplyError,
    ReplyMalformedError,
    RequestError,
    UnreachableError,
)
from protocol.frames import Reply
from protocol.ids import InstanceId, Token
from protocol.messages import Body, Ping, Request

PROMPT_NS: Final = 250_000_000
"""A probe answered within this time closes the breaker; a later answer shows an overloaded one."""

PROBE_S: Final = 1.0
"""A probe not answered within this time costs the connection."""

HELLO_S: Final = 2.0

MAX_IN_FLIGHT: Final = 32

Done = Callable[[Body | None, KvkeepError | None], None]


@dataclass(frozen=True)
class _Awaited:
    done: Done
    sent_ns: int
    give_up_ns: int


class Calls:
    """Requests to one server incarnation over one connection at a time.

    Attributes:
        greeted: whether HELLO was answered on the present connection.
        refusal: set once the server refused HELLO; nothing more will be sent then.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        token: Token,
        epoch: bytes,
        instance: InstanceId,
        client: str,
        breaker: Breaker,
        journal: Journal,
    ) -> None:
        """Begins to connect.

        Args:
            context: of the link.
            endpoint: as the server named it.
            token: of this process's side connection.
            epoch: that HELLO must be answered with.
            instance: the engine.
            client: name for the server's log.
            breaker: tripped by time-outs, closed by prompt answers.
            journal: counters.

        Raises:
            zmq.ZMQError: the endpoint is none.
        """
        self._context = context
        self._endpoint = endpoint
        self._instance = instance
        self._client = client
        self._token = token
        self._epoch = epoch
        self._breaker = breaker
        self._journal = journal
        self._awaited: dict[int, _Awaited] = {}
        self._hello_at_ns = 0
        self._is_probing = False
        self._is_hello_sent = False
        self.greeted = False
        self.refusal: KvkeepError | None = None
        self._dealer = self._open()

    def _open(self) -> Dealer:
        return Dealer(self._context, self._endpoint, self._instance, self._client)

    @property
    def dealer(self) -> Dealer:
        """The present connection."""
        return self._dealer

    def poll_events(self, now_ns: int) -> int:
        """What to poll the socket for.

        Args:
            now_ns: monotonic clock.

        Returns:
            ZMQ event mask.
        """
        is_waiting_to_greet = not self._is_hello_sent and now_ns >= self._hello_at_ns
        return zmq.POLLIN | (zmq.POLLOUT if is_waiting_to_greet else 0)

    def next_ns(self, now_ns: int) -> int | None:
        """When ``turn`` has something to do even if nothing arrives; None for never.

        Args:
            now_ns: monotonic clock.
        """
        times = [awaited.give_up_ns for awaited in self._awaited.values()]
        if not self._is_hello_sent:
            if self._hello_at_ns > now_ns:  # else it waits for the connection, not for a time
                times.append(self._hello_at_ns)
        elif self.has_room() and not self._is_probing:
            probe_at_ns = self._breaker.probe_at_ns()
            if probe_at_ns is not None:
                times.append(probe_at_ns)
        return min(times, default=None)

    def has_room(self) -> bool:
        """Whether one more request may be sent now."""
        return self.greeted and len(self._awaited) < MAX_IN_FLIGHT

    def send(self, body: Request, timeout_s: float, done: Done) -> bool:
        """Sends a request.

        Args:
            body: what to ask.
            timeout_s: afterwards ``done`` gets an UnreachableError and the connection is renewed.
            done: called once, in this thread, with the reply's body or an error.

        Returns:
            False when it was not sent and ``done`` will not be called: try again later.
        """
        if not self.has_room():
            return False
        try:
            seq = self._dealer.send(body, timeout_s)
        except RequestError:
            return False
        if seq is None:
            return False
        now_ns = time.monotonic_ns()
        self._awaited[seq] = _Awaited(done, now_ns, now_ns + int(timeout_s * 1e9))
        return True

    def turn(self, now_ns: int) -> None:
        """Says HELLO if due, takes replies, gives up what is late, probes.

        Args:
            now_ns: monotonic clock.
        """
        self._greet(now_ns)
        self._take_replies()
        if any(now_ns >= awaited.give_up_ns for awaited in self._awaited.values()):
            self._journal.count("keeper_timeouts")
            self.renew("the keeper's request was not answered in time", now_ns)
        self._probe(now_ns)

    def _greet(self, now_ns: int) -> None:
        if self._is_hello_sent or now_ns < self._hello_at_ns or self.refusal is not None:
            return
        seq = self._dealer.say_hello(self._token)
        if seq is None:
            return
        self._is_hello_sent = True
        self._awaited[seq] = _Awaited(self._on_hello, now_ns, now_ns + int(HELLO_S * 1e9))

    def _on_hello(self, body: Body | None, error: KvkeepError | None) -> None:
        welcome = self._dealer.welcome
        if isinstance(error, ReplyError):
            self.refusal = error
        elif body is not None and welcome is not None:
            self.greeted = True
            if welcome.epoch != self._epoch:
                self.greeted = False
                self.refusal = ReplyError(
                    ErrorCode.STALE_EPOCH, "another incarnation of the server answered HELLO"
                )

    def _take_replies(self) -> None:
        dealer = self._dealer
        while dealer is self._dealer:
            try:
                reply = dealer.receive()
            except ReplyMalformedError as error:
                self._journal.report("malformed_replies", str(error))
                self.renew("a malformed reply", time.monotonic_ns())
                return
            if reply is None:
                return
            self._settle(reply)

    def _settle(self, reply: Reply) -> None:
        awaited = self._awaited.pop(reply.seq, None)
        if awaited is None:
            return
        now_ns = time.monotonic_ns()
        if self._breaker.is_open and awaited.sent_ns + PROMPT_NS >= now_ns:
            self._breaker.close(now_ns)
        awaited.done(reply.body, reply.error)

    def _probe(self, now_ns: int) -> None:
        probe_at_ns = self._breaker.probe_at_ns()
        if probe_at_ns is None or now_ns < probe_at_ns or self._is_probing:
            return
        self._is_probing = self.send(Ping(), PROBE_S, self._on_probe)

    def _on_probe(self, body: Body | None, error: KvkeepError | None) -> None:
        self._is_probing = False
        self._journal.count("probes")
        if self._breaker.is_open:
            self._breaker.probe_failed(time.monotonic_ns())

    def renew(self, reason: str, now_ns: int, is_late: bool = True) -> None:
        """Closes the connection and begins a fresh one; everything in flight fails.

        Args:
            reason: for the log and the breaker.
            now_ns: monotonic clock.
            is_late: the server did not answer in time, so the breaker opens.
        """
        if is_late and self._breaker.is_open:
            self._breaker.probe_failed(now_ns)
        elif is_late:
            self._breaker.trip(reason, now_ns)
        self._dealer.close()
        failed, self._awaited = list(self._awaited.values()), {}
        self.greeted = self._is_hello_sent = self._is_probing = False
        self._hello_at_ns = self._breaker.probe_at_ns() or now_ns
        for awaited in failed:
            awaited.done(None, UnreachableError(ErrorCode.DEADLINE_EXCEEDED, reason))
        self._dealer = self._open()

    def close(self) -> None:
        """Closes the connection; what is in flight is forgotten. Idempotent."""
        self._awaited.clear()
        self.greeted = False
        self._dealer.close()
