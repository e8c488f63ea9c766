"""A thread's own line to the server: calls with a deadline, and several requests in flight.

Must not know: registration, the side socket, mappings: the keeper does those. One channel belongs
to one thread, the first that calls it.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import KvkeepError
from protocol.messages import Body, Request


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


class Channel:
    """One DEALER connection, opened when it is needed and renewed after every time-out."""

    def call(self, body: Request, timeout_s: float | None = None) -> Body:
        """Asks and waits for the reply.

        Args:
            body: the request; its session must be the current ``Joined.session``.
            timeout_s: whole time for it, a new connection included; None for the link's
                ``call_budget_s``.

        Returns:
            The reply's body, of the type that belongs to the operation.

        Raises:
            ReplyError: the server refused; nothing happened there.
            UnreachableError: no reply in time, or at once while the breaker is open or the link
                has not joined. Whether the server did it is unknown after a time-out.
        """
        raise NotImplementedError

    def submit(self, body: Request, timeout_s: float) -> int:
        """Sends a request without waiting.

        Args:
            body: the request.
            timeout_s: the server answers within this time (DEADLINE_EXCEEDED at the latest); half
                a second later it counts as not answered.

        Returns:
            A ticket; exactly one Completion with it comes out of ``poll``.

        Raises:
            UnreachableError: as in ``call``; also when 48 requests are in flight already.
        """
        raise NotImplementedError

    def poll(self, wait_s: float) -> list[Completion]:
        """Collects what has ended.

        Args:
            wait_s: longest wait for the first completion; 0 to look only.

        Returns:
            Completions, in the order in which they ended; empty after ``wait_s``, or at once when
            nothing is in flight.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Closes the connection; what is in flight is lost. Idempotent."""
        raise NotImplementedError
