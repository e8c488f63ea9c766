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
from protocol.messages import Body
from protocol.session import ServerSession
from server.core.clock import Timers
from server.core.effects import Effect, PeerId, SendReply


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
    """

    peer: PeerId
    op: int
    seq: int
    deadline_ns: int
    session: ServerSession
    begun_ns: int = 0
    done: bool = False
    timer: int = 0

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
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.counters: Counter[str] = Counter()
        self.num_owed = 0
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

    def reply(self, ticket: Ticket, body: Body) -> None:
        """Answers a ticket; a second answer is left out.

        Args:
            ticket: which request.
            body: the operation's reply.
        """
        if self._settle(ticket):
            frame = frames.pack_reply(ticket.op, ticket.seq, body)
            self.add(SendReply(ticket.peer, frame, ticket.op, ticket.begun_ns))

    def fail(self, ticket: Ticket, error: KvkeepError) -> None:
        """Answers a ticket with an error; a second answer is left out.

        Args:
            ticket: which request.
            error: what to say.
        """
        if self._settle(ticket):
            self.counters[f"error_{error.code.name.lower()}"] += 1
            frame = frames.pack_error(ticket.op, ticket.seq, error)
            self.add(SendReply(ticket.peer, frame, ticket.op, ticket.begun_ns))

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
