"""Finds the side socket of a tcp server: a HELLO without token is answered with its path.

Must not know: what the path is used for. Runs in: the keeper's thread.
"""

from __future__ import annotations

from typing import Any

import zmq

from adapter.dealer import Dealer
from protocol.errors import ErrorCode, ReplyMalformedError, UnreachableError
from protocol.ids import InstanceId, Token


class Discovery:
    """One question to one tcp endpoint.

    Attributes:
        path: of the side socket once it was answered, else None.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        instance: InstanceId,
        client: str,
        until_ns: int,
    ) -> None:
        """Begins to connect.

        Args:
            context: of the link.
            endpoint: a tcp URL.
            instance: the engine.
            client: name for the server's log.
            until_ns: when to give up, on the monotonic clock.

        Raises:
            UnreachableError: UNAVAILABLE, the endpoint cannot be used.
        """
        self.path: str | None = None
        self.until_ns = until_ns
        self._endpoint = endpoint
        self._is_asked = False
        try:
            self._dealer = Dealer(context, endpoint, instance, client)
        except zmq.ZMQError as error:
            raise UnreachableError(ErrorCode.UNAVAILABLE, f"{endpoint}: {error}") from error

    def polled(self) -> tuple[Any, int]:
        """The socket to poll and its event mask."""
        return self._dealer.socket, zmq.POLLIN if self._is_asked else zmq.POLLIN | zmq.POLLOUT

    def turn(self, now_ns: int) -> None:
        """Asks, or takes the answer in.

        Args:
            now_ns: monotonic clock.

        Raises:
            UnreachableError: no answer in time, or one without a path.
        """
        if not self._is_asked:
            self._is_asked = self._dealer.say_hello(Token(b"")) is not None
        try:
            reply = self._dealer.receive()
        except ReplyMalformedError as error:
            raise UnreachableError(error.code, error.message) from error
        if reply is None:
            if now_ns >= self.until_ns:
                raise UnreachableError(
                    ErrorCode.DEADLINE_EXCEEDED, f"no server answers at {self._endpoint}"
                )
            return
        path = None if reply.error is None else reply.error.detail.get("side")
        if not isinstance(path, str) or not path.startswith("/"):
            raise UnreachableError(
                ErrorCode.UNAVAILABLE,
                f"the server at {self._endpoint} did not name its side socket: {reply.error}",
            )
        self.path = path

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        self._dealer.close()
