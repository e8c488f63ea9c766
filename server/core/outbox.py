"""Effects in the order they were decided, and replies that are owed.

Purpose: every admitted request owns one ticket; a ticket is answered exactly once, now or later.
Must not know: what a reply means. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from protocol import frames
from protocol.errors import KvkeepError
from protocol.messages import Body
from protocol.session import ServerSession
from server.core.effects import Effect, PeerId, SendReply


@dataclass
class Ticket:
    """One owed reply.

    Attributes:
        peer: whom.
        op: operation number of the request.
        seq: of the request.
        deadline_ns: when an answer stops being of use, 0 for never.
        session: the server half of the connection, where the seq is open.
        done: whether it was answered.
    """

    peer: PeerId
    op: int
    seq: int
    deadline_ns: int
    session: ServerSession
    done: bool = False

    def expired(self, now_ns: int) -> bool:
        """Whether the deadline has passed."""
        return 0 < self.deadline_ns <= now_ns


class Outbox:
    """Collects effects until the shell takes them.

    Attributes:
        counters: named counts for STATS.
        num_owed: tickets without an answer.
    """

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.num_owed = 0
        self._effects: list[Effect] = []
        self._dropped: set[int] = set()

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
            self.add(SendReply(ticket.peer, frames.pack_reply(ticket.op, ticket.seq, body)))

    def fail(self, ticket: Ticket, error: KvkeepError) -> None:
        """Answers a ticket with an error; a second answer is left out.

        Args:
            ticket: which request.
            error: what to say.
        """
        if self._settle(ticket):
            self.counters[f"error_{error.code.name.lower()}"] += 1
            self.add(SendReply(ticket.peer, frames.pack_error(ticket.op, ticket.seq, error)))

    def _settle(self, ticket: Ticket) -> bool:
        if ticket.done:
            return False
        ticket.done = True
        self.num_owed -= 1
        ticket.session.close(ticket.seq)
        return ticket.session.instance is not None or ticket.op <= 1
