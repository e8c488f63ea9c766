"""Requests of routers: EVENTS and SNAPSHOT.

Must not know: frames, sockets, how events come about. Runs in: the loop thread.
"""

from __future__ import annotations

from protocol.messages import Body, Events, Snapshot
from server.core.desk import Desk, Table
from server.core.outbox import Ticket
from server.core.peers import Process


class EventHandlers:
    """EVENTS and SNAPSHOT.

    Args:
        desk: references and answers.

    Attributes:
        table: handler of each request.
    """

    def __init__(self, desk: Desk) -> None:
        self._state = desk.state
        self.table: Table = {Events: self._events, Snapshot: self._snapshot}

    def _events(self, process: Process, body: Events, ticket: Ticket) -> Body | None:
        process.is_operator = True
        may_wait = not (self._state.draining or process.quiet)
        return self._state.following.ask(body, ticket, may_wait)

    def _snapshot(self, process: Process, body: Snapshot, ticket: Ticket) -> Body:
        process.is_operator = True
        return self._state.following.page(body)
