"""Readers of the event stream: who waits for news, and pages of what is held.

Purpose: EVENTS and SNAPSHOT. Nothing is noted, and nobody pays, before somebody has asked; and no
more when nobody has for a while. Must not know: frames, sockets, what readers do with it. Runs in:
the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from protocol.errors import ErrorCode, RequestError
from protocol.events import MAX_SNAPSHOT_CHUNKS
from protocol.ids import ID_BYTES, Fingerprint
from protocol.messages import Events, EventsReply, Snapshot, SnapshotReply
from server.core.admission import MORE, Lanes, Steps
from server.core.arena import Arena
from server.core.clock import Timers
from server.core.complete import complete_nodes
from server.core.config import SECOND_NS
from server.core.effects import PeerId
from server.core.events import BYTES_FOR_EVENTS, EventLog
from server.core.operations import Operations
from server.core.outbox import Outbox, Ticket
from server.core.publishing import Publisher
from server.core.roster import Roster

MS_NS = 1_000_000
GATHER_NS = 10 * MS_NS
"""How long after an event those who wait are answered: then others have joined it."""

IDLE_NS = 600 * SECOND_NS
"""Time without a question after which events are not noted any more."""

MAX_WAITING = 256
"""EVENTS that wait at once."""

PAGE_NODES = 1 << 15
"""Places of an index that one page of a snapshot looks at; shards of them where no group has full
attention."""

LANE = "events"


@dataclass(eq=False)
class Waiter:
    """One EVENTS that waits.

    Attributes:
        ticket: its reply.
        cursor: number of the first event wanted.
        most: events wanted.
        timer: the end of its wait.
    """

    ticket: Ticket
    cursor: int
    most: int
    timer: int = 0


class Following:
    """Readers of the stream.

    Args:
        timers: ends of waits.
        outbox: replies and counters.
        lanes: where many are answered.
        arena: drops chunks.
        publisher: publishes them.
        operations: clears them.
        roster: namespaces.
        fault: notes an error of our own.
    """

    def __init__(
        self,
        timers: Timers,
        outbox: Outbox,
        lanes: Lanes,
        arena: Arena,
        publisher: Publisher,
        operations: Operations,
        roster: Roster,
        fault: Callable[[Exception], None],
    ) -> None:
        self._timers = timers
        self._outbox = outbox
        self._lanes = lanes
        self._writers = (arena, publisher, operations)
        self._roster = roster
        self._fault = fault
        self._log: EventLog | None = None
        self._resume = 1
        self._asked_ns = 0
        self._gathering = 0
        self._waiters: dict[PeerId, Waiter] = {}

    @property
    def accounted_bytes(self) -> int:
        """Memory that the events which are kept may take. Any thread may ask."""
        return BYTES_FOR_EVENTS if self._log is not None else 0

    def figures(self) -> dict[str, int]:
        """Gauges, by name."""
        log = self._log
        return {
            "events_kept": 0 if log is None else log.next - log.first,
            "event_readers_waiting": len(self._waiters),
        }

    # --- on and off -----------------------------------------------------------------------

    def _write_to(self, log: EventLog | None) -> None:
        self._log = log
        for writer in self._writers:
            writer.events = log

    def _switched_on(self) -> EventLog:
        log = self._log
        if log is None:
            log = EventLog()
            log.first = log.next = self._resume
            log.told = self._told
            self._write_to(log)
            self._timers.at(self._timers.clock.now_ns + IDLE_NS, self._look)
        return log

    def _look(self) -> None:
        """Switches off if nobody has asked for long enough."""
        if self._log is None:
            return
        due_ns = self._asked_ns + IDLE_NS
        if self._timers.clock.now_ns < due_ns or self._waiters:
            self._timers.at(max(due_ns, self._timers.clock.now_ns + SECOND_NS), self._look)
            return
        # One number is left out: who comes back with the last one has missed what happened.
        self._log.flush()
        self._resume = self._log.next + 1
        self._write_to(None)

    # --- EVENTS ---------------------------------------------------------------------------

    def ask(self, body: Events, ticket: Ticket, may_wait: bool) -> EventsReply | None:
        """Answers what is there, or has the request wait for it.

        Args:
            body: the request.
            ticket: its reply.
            may_wait: the server is not about to end.

        Returns:
            The reply; None when it comes later.

        Raises:
            RequestError: BUSY, too many wait.
        """
        self._asked_ns = self._timers.clock.now_ns
        log = self._switched_on()
        former = self._waiters.get(ticket.peer)
        if former is not None:
            self._answer(former)
        reply = self._read(log, body.cursor, body.max_events)
        if reply.events or reply.lost or not body.wait_ms or not may_wait:
            return reply
        if len(self._waiters) >= MAX_WAITING:
            raise RequestError(ErrorCode.BUSY, f"{MAX_WAITING} readers wait for events already")
        waiter = self._waiters[ticket.peer] = Waiter(ticket, body.cursor, body.max_events)
        due_ns = self._asked_ns + body.wait_ms * MS_NS
        if ticket.deadline_ns:
            due_ns = min(due_ns, ticket.deadline_ns)
        waiter.timer = self._timers.at(due_ns, partial(self._answer, waiter))
        return None

    def _read(self, log: EventLog, cursor: int, most: int) -> EventsReply:
        part = log.read(cursor, most)
        if part.lost and cursor:
            self._outbox.counters["event_losses"] += 1
        return EventsReply(cursor=part.cursor, lost=part.lost, events=part.events)

    def _answer(self, waiter: Waiter) -> None:
        if self._waiters.get(waiter.ticket.peer) is not waiter:
            return
        del self._waiters[waiter.ticket.peer]
        self._timers.cancel(waiter.timer)
        log = self._switched_on()
        self._outbox.reply(waiter.ticket, self._read(log, waiter.cursor, waiter.most))

    def _told(self) -> None:
        """Something happened: those who wait are answered soon."""
        if self._waiters and not self._gathering:
            due_ns = self._timers.clock.now_ns + GATHER_NS
            self._gathering = self._timers.at(due_ns, self._tell)

    def _tell(self) -> None:
        self._gathering = 0
        self._lanes.start(LANE, self._answer_all(list(self._waiters.values())), self._fault)

    def _answer_all(self, waiters: list[Waiter]) -> Steps:
        for waiter in waiters:
            self._answer(waiter)
            yield MORE

    def drain(self) -> None:
        """The server is about to end: nobody waits any more."""
        for waiter in list(self._waiters.values()):
            self._answer(waiter)

    # --- SNAPSHOT -------------------------------------------------------------------------

    def page(self, body: Snapshot) -> SnapshotReply:
        """One page of what is held.

        Args:
            body: the request.

        Raises:
            RequestError: INVALID_ARGUMENT.
        """
        if len(body.fingerprint) not in (0, ID_BYTES):
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"a fingerprint is 16 bytes or none, not {len(body.fingerprint)}",
            )
        name = min((one for one in self._roster.owners if one >= body.fingerprint), default=None)
        if name is None:
            return SnapshotReply(fingerprint=b"", keys=b"", parents=b"")
        # One that went since the page before leaves its place to the next.
        begin = body.position if name == body.fingerprint else 0
        index = self._roster.owners[name].index
        nodes, end = complete_nodes(index, begin, PAGE_NODES, MAX_SNAPSHOT_CHUNKS)
        following = self._after(name) if end is None else (name, end)
        return SnapshotReply(
            fingerprint=name,
            keys=index.keys_of(nodes).tobytes(),
            parents=index.parent_keys(nodes).tobytes(),
            next_fingerprint=following[0],
            next_position=following[1],
        )

    def _after(self, name: Fingerprint) -> tuple[bytes, int]:
        return min((one for one in self._roster.owners if one > name), default=b""), 0
