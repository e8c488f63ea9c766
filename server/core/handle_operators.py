"""Requests of operators about whole namespaces.

Must not know: frames, sockets. Runs in: the loop thread.
"""

from __future__ import annotations

from protocol.messages import (
    Body,
    Clear,
    Delete,
    Inspect,
    Pin,
    Unpin,
)
from server.core.desk import Desk, Table, check_keys
from server.core.outbox import Ticket
from server.core.peers import Process


class OperatorHandlers:
    """CLEAR, DELETE, INSPECT, PIN, UNPIN.

    Args:
        desk: references and answers.

    Attributes:
        table: handler of each request.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._state = desk.state
        self.table: Table = {
            Clear: self._clear,
            Delete: self._delete,
            Inspect: self._inspect,
            Pin: self._pin,
            Unpin: self._unpin,
        }

    def _clear(self, process: Process, body: Clear, ticket: Ticket) -> None:
        operations = self._state.operations
        if body.fingerprint:
            owners = [operations.owner(body.fingerprint)]
        else:
            owners = list(self._state.roster.owners.values())
        self._desk.wait(ticket)
        operations.clear(owners, ticket)

    def _delete(self, process: Process, body: Delete, ticket: Ticket) -> None:
        operations = self._state.operations
        check_keys(body.keys, 0)
        owner = operations.owner(body.fingerprint)
        self._desk.wait(ticket)
        operations.delete(owner, body.keys, ticket)

    def _inspect(self, process: Process, body: Inspect, ticket: Ticket) -> Body:
        operations = self._state.operations
        check_keys(body.keys, 0)
        return operations.inspect(operations.owner(body.fingerprint), body.keys)

    def _pin(self, process: Process, body: Pin, ticket: Ticket) -> Body:
        state = self._state
        check_keys(body.keys, 0)
        owner = state.operations.owner(body.fingerprint)
        return state.operations.pin(owner, body.keys, body.ttl_s, state.clock.now_ns)

    def _unpin(self, process: Process, body: Unpin, ticket: Ticket) -> Body:
        operations = self._state.operations
        check_keys(body.keys, 0)
        return operations.unpin(operations.owner(body.fingerprint), body.keys)
