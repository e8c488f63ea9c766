"""Every operation but HELLO: the table, and who may begin what.

Must not know: frames, sockets, what an operation does. Runs in: the loop thread.
"""

from __future__ import annotations

from protocol.errors import ErrorCode, RequestError
from protocol.messages import Body, Done, Op, Ping, Request
from server.core.desk import Desk, Table
from server.core.handle_engines import EngineHandlers
from server.core.handle_events import EventHandlers
from server.core.handle_loads import LoadHandlers
from server.core.handle_operators import OperatorHandlers
from server.core.handle_saves import SaveHandlers
from server.core.outbox import Ticket
from server.core.peers import Process
from server.core.state import State

_NEW_WORK = frozenset({Op.REGISTER_KV_CACHE, Op.LOOKUP, Op.STORE, Op.RETRIEVE, Op.WARM})
"""What a process whose side connection ended may not begin any more."""

_DRAINED = frozenset({Op.REGISTER_KV_CACHE, Op.LOOKUP, Op.STORE, Op.WARM})
"""What a server that is about to end does not begin any more."""


class Handlers:
    """All operations but HELLO.

    Args:
        state: every room of the core.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        desk = Desk(state)
        self._table: Table = {
            Ping: lambda process, body, ticket: Done(),
            **EngineHandlers(desk).table,
            **LoadHandlers(desk).table,
            **SaveHandlers(desk).table,
            **OperatorHandlers(desk).table,
            **EventHandlers(desk).table,
        }

    def handle(self, process: Process, body: Request, ticket: Ticket) -> Body | None:
        """Serves a request.

        Args:
            process: who asks.
            body: what.
            ticket: the owed reply.

        Returns:
            The reply, or None when it comes later.

        Raises:
            RequestError: the reply instead.
        """
        if process.quiet and body.op in _NEW_WORK:
            raise RequestError(
                ErrorCode.UNAUTHENTICATED, "the side connection ended: connect it again"
            )
        if self._state.draining and body.op in _DRAINED:
            raise RequestError(ErrorCode.DRAINING, "the server is about to end")
        return self._table[type(body)](process, body, ticket)
