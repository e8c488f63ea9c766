"""What all handlers share: references in requests, and answers that come later.

Purpose: a session number is checked against who asks; long work is started so that its errors and
its deadline become the one reply. Must not know: what a request does. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.ids import ID_BYTES, SessionId
from protocol.limits import MAX_U32
from protocol.messages import Body, Request
from server.core.admission import Steps
from server.core.namespaces import Session
from server.core.outbox import Ticket
from server.core.peers import Process
from server.core.registry import WAIT_NS
from server.core.state import State

Handler = Callable[[Process, Any, Ticket], Body | None]
"""Who asks, what, the owed reply; returns the reply, or None for later."""

Table = dict[type[Request], Handler]
"""Each request's handler."""


class Desk:
    """References and answers.

    Args:
        state: every room of the core.

    Attributes:
        state: every room of the core.
    """

    def __init__(self, state: State) -> None:
        self.state = state

    def of_instance(self, process: Process, number: int) -> Session:
        """A ready session of the asker's engine.

        Raises:
            RequestError: UNKNOWN_SESSION.
        """
        session = self.state.roster.sessions.get(SessionId(number))
        if (
            session is None
            or not session.is_ready
            or session.is_closing
            or session.instance.instance != process.instance
        ):
            raise RequestError(ErrorCode.UNKNOWN_SESSION, f"no session {number}: register again")
        return session

    def of_process(self, process: Process, number: int) -> Session:
        """A ready session of the asker itself.

        Raises:
            RequestError: UNKNOWN_SESSION.
        """
        session = self.of_instance(process, number)
        if session.process != process.process:
            raise RequestError(ErrorCode.UNKNOWN_SESSION, f"session {number} is another process's")
        return session

    def sliced(self, ticket: Ticket, lane: Hashable, steps: Steps) -> None:
        """Runs long work whose errors are the reply, and whose deadline is checked per slice."""
        state = self.state

        def guarded() -> Steps:
            for pause in steps:
                yield pause
                if ticket.expired(state.clock.now_ns) and not ticket.done:
                    steps.close()
                    raise RequestError(ErrorCode.DEADLINE_EXCEEDED, "the request took too long")

        state.lanes.start(lane, guarded(), partial(self._failed, ticket))

    def in_slices(self, ticket: Ticket, lane: SessionId, steps: Steps) -> None:
        """Runs long work that goes on to its end whether or not somebody waits for the answer."""
        self.wait(ticket)
        self.state.lanes.start(lane, steps, partial(self._failed, ticket))

    def _failed(self, ticket: Ticket, error: Exception) -> None:
        if not isinstance(error, KvkeepError):
            self.state.fault(error)
            error = RequestError(ErrorCode.INTERNAL, "the server failed; its log says why")
        self.state.outbox.fail(ticket, error)

    def wait(self, ticket: Ticket) -> None:
        """For work that goes on to its end whether or not somebody waits for the answer."""
        outbox = self.state.outbox
        outbox.answer_by(ticket, WAIT_NS, partial(outbox.expire, ticket))


def check_tenant(tenant: bytes) -> bytes:
    """Checks the name of a request's tenant, and returns it.

    Args:
        tenant: as sent.

    Raises:
        RequestError: INVALID_ARGUMENT.
    """
    if len(tenant) not in (0, ID_BYTES):
        raise RequestError(
            ErrorCode.INVALID_ARGUMENT, f"a tenant is 16 bytes or none, not {len(tenant)}"
        )
    if tenant and not any(tenant):
        raise RequestError(ErrorCode.INVALID_ARGUMENT, "16 zero bytes are no tenant")
    return tenant


def check_keys(keys: bytes, start: int) -> int:
    """Checks a blob of chunk keys.

    Args:
        keys: 16 bytes per chunk.
        start: ordinal of the first.

    Returns:
        How many.

    Raises:
        RequestError: COUNT_MISMATCH or INVALID_ARGUMENT.
    """
    count, ragged = divmod(len(keys), ID_BYTES)
    if ragged:
        raise RequestError(
            ErrorCode.COUNT_MISMATCH, f"{len(keys)} bytes are no whole number of 16-byte keys"
        )
    if start + count > MAX_U32 // 2:
        raise RequestError(
            ErrorCode.INVALID_ARGUMENT, f"a chain has fewer than {MAX_U32 // 2} chunks"
        )
    return count
