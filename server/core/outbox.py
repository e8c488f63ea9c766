"""Effects in the order they were decided, and replies that are owed.

Purpose: every admitted request owns one ticket; a ticket is answered exactly once, now or later.
Must not know: what a reply means. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from protocol import frames
from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.messages import Body, Request
from protocol.session import ServerSession
from server.core.clock import Timers
from server.core.effects import Effect, PeerId, SendReply
from server.core.told import Told, chunks_of, request_of


@dataclass(slots=True)
class Ticket:
    """One owed reply.

    Attributes:
        peer: whom.
        op: operation number of the request.
        seq: of the request.
        deadline_ns: when an answer stops being of use, 0 for never.
        session: the server half of the connection, where the seq is open.
        begun_ns: when the request came.
        done: whether it was answered.
        timer: of its deadline, 0 for none.
        body: of the request, until it is answered; None for one that could not be read.
        traceparent: as the request brought it, where it may be traced.
    """

    peer: PeerId
    op: int
    seq: int
    deadline_ns: int
    session: ServerSession
    begun_ns: int = 0
    done: bool = False
    timer: int = 0
    body: Request | None = None
    traceparent: str = ""

    def expired(self, now_ns: int) -> bool:
        """Whether the deadline has passed."""
        return 0 < self.deadline_ns <= now_ns


class Outbox:
    """Collects effects until the shell takes them.

    Args:
        timers: where deadlines of owed replies are kept.

    Attributes:
        counters: named counts for STATS.
        num_owed: tickets without an answer.
        namespace: finds the fingerprint for a session's number; empty for none.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.counters: Counter[str] = Counter()
        self.num_owed = 0
        self.namespace: Callable[[int], bytes] = lambda session: b""
        self._effects: list[Effect] = []

    def add(self, effect: Effect) -> None:
        """Appends an effect; the shell performs them in order."""
        self._effects.append(effect)

    def take(self) -> list[Effect]:
        """Hands the effects over and starts a new list.

        Returns:
            In the order they were added.
        """
        taken, self._effects = self._effects, []
        return taken

    def open(self, ticket: Ticket) -> Ticket:
        """Counts a ticket as owed."""
        self.num_owed += 1
        return ticket

    def reply(self, ticket: Ticket, body: Body, is_cut: bool = False) -> None:
        """Answers a ticket; a second answer is left out.

        Args:
            ticket: which request.
            body: the operation's reply.
            is_cut: it is one of trouble, though no error: the log is to have it.
        """
        if self._settle(ticket):
            frame = frames.pack_reply(ticket.op, ticket.seq, body)
            told = None
            if ticket.traceparent or is_cut:
                told = self._told(ticket, None, body)
            op, begun_ns, seq = ticket.op, ticket.begun_ns, ticket.seq
            self.add(SendReply(ticket.peer, frame, op, begun_ns, told, seq, ticket.body))
            ticket.body = None

    def fail(self, ticket: Ticket, error: KvkeepError) -> None:
        """Answers a ticket with an error; a second answer is left out.

        Args:
            ticket: which request.
            error: what to say.
        """
        if self._settle(ticket):
            self.counters[f"error_{error.code.name.lower()}"] += 1
            frame = frames.pack_error(ticket.op, ticket.seq, error)
            told = self._told(ticket, error, None)
            op, begun_ns, seq = ticket.op, ticket.begun_ns, ticket.seq
            self.add(SendReply(ticket.peer, frame, op, begun_ns, told, seq, ticket.body))
            ticket.body = None

    def refuse(self, peer: PeerId, op: int, seq: int, error: KvkeepError) -> None:
        """Answers a frame for which no ticket was opened.

        Args:
            peer: whose.
            op: as far as it was read, else 0.
            seq: the same.
            error: what to say.
        """
        self.counters["requests_refused"] += 1
        told = Told(op, seq, error=error)
        self.add(SendReply(peer, frames.pack_error(op, seq, error), told=told))

    def fingerprint_of(self, body: Request | None) -> bytes:
        """Of the namespace that a request is about; empty for none, or unknown."""
        session = getattr(body, "session", 0)
        known = getattr(body, "fingerprint", b"")
        return known or (self.namespace(session) if session else b"")

    def _told(self, ticket: Ticket, error: KvkeepError | None, answer: Body | None) -> Told:
        body = ticket.body
        return Told(
            ticket.op,
            ticket.seq,
            request_of(body),
            ticket.session.instance or b"",
            self.fingerprint_of(body),
            error,
            answer,
            chunks_of(body),
            ticket.traceparent,
        )

    def answer_by(self, ticket: Ticket, default_ns: int, too_late: Callable[[], None]) -> None:
        """Arranges what happens when a reply is still owed at its deadline.

        Args:
            ticket: which request.
            default_ns: how long to wait when the request names no deadline.
            too_late: answers the ticket and undoes what was begun.
        """
        due_ns = ticket.deadline_ns or self._timers.clock.now_ns + default_ns
        ticket.timer = self._timers.at(due_ns, too_late)

    def expire(self, ticket: Ticket) -> None:
        """Answers DEADLINE_EXCEEDED."""
        self.fail(ticket, RequestError(ErrorCode.DEADLINE_EXCEEDED, "the request took too long"))

    def _settle(self, ticket: Ticket) -> bool:
        if ticket.done:
            return False
        if ticket.timer:
            self._timers.cancel(ticket.timer)
        ticket.done = True
        self.num_owed -= 1
        ticket.session.close(ticket.seq)
        return ticket.session.instance is not None or ticket.op <= 1
