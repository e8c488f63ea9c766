"""One DEALER socket with the client half of the protocol: connect, say HELLO, send, receive.

A socket is used until something on it was not answered in time; then it is closed and the next
request gets a fresh one, so that no late reply and no late request can cross (fault P10).

Must not know: registration, breaker, retries. Belongs to one thread, the one that made it.
"""

from __future__ import annotations

import time
from typing import Any, Final

import zmq

from protocol import limits
from protocol.errors import ErrorCode, ReplyMalformedError
from protocol.frames import Reply
from protocol.ids import InstanceId, Token
from protocol.messages import HelloReply, Request
from protocol.session import ClientSession

_QUEUED_FRAMES: Final = 128
"""High-water mark per direction; the server owes at most 64 replies to one connection."""


class Dealer:
    """One connection to the server's ROUTER.

    Attributes:
        socket: the ZMQ socket, for polling.
        welcome: the reply to HELLO once it came, else None.
    """

    def __init__(
        self, context: zmq.Context[Any], endpoint: str, instance: InstanceId, client: str
    ) -> None:
        """Begins to connect.

        Args:
            context: of this link.
            endpoint: as ZMQ takes it.
            instance: the engine.
            client: name and version for the server's log.

        Raises:
            zmq.ZMQError: the endpoint is none, or no more sockets are to be had.
        """
        self.socket = context.socket(zmq.DEALER)
        self._session = ClientSession(instance, client)
        try:
            self.socket.setsockopt(zmq.LINGER, 0)
            self.socket.setsockopt(zmq.IMMEDIATE, 1)
            self.socket.setsockopt(zmq.SNDHWM, _QUEUED_FRAMES)
            self.socket.setsockopt(zmq.RCVHWM, _QUEUED_FRAMES)
            self.socket.setsockopt(zmq.MAXMSGSIZE, limits.MAX_FRAME_BYTES)
            self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
            self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
            if "[" in endpoint:
                self.socket.setsockopt(zmq.IPV6, 1)
            self.socket.connect(endpoint)
        except zmq.ZMQError:
            self.socket.close(0)
            raise

    @property
    def welcome(self) -> HelloReply | None:
        """The reply to HELLO, or None before it came."""
        return self._session.welcome

    def say_hello(self, token: Token) -> int | None:
        """Sends HELLO.

        Args:
            token: from the side socket; empty to be told where that is.

        Returns:
            Its seq, or None while the connection does not stand yet.
        """
        seq, frame = self._session.hello(token)
        return self._put(seq, frame)

    def send(self, body: Request, timeout_s: float) -> int | None:
        """Sends a request.

        Args:
            body: after HELLO was answered.
            timeout_s: how long an answer is of use; the server refuses it afterwards.

        Returns:
            Its seq, or None when the connection is gone or does not take any more.

        Raises:
            RequestError: UNAUTHENTICATED before HELLO was answered.
        """
        timeout_ns = max(1, int(timeout_s * 1e9))
        seq, frame = self._session.request(body, time.monotonic_ns(), timeout_ns)
        return self._put(seq, frame)

    def _put(self, seq: int, frame: bytes) -> int | None:
        try:
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self._session.forget(seq)
            return None
        return seq

    def receive(self) -> Reply | None:
        """Takes one reply off the socket without waiting.

        Returns:
            The reply, or None when there is none. Replies that nobody waits for are skipped.

        Raises:
            ReplyMalformedError: what came is no reply of this protocol.
        """
        while True:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if len(parts) != 1:
                raise ReplyMalformedError(
                    ErrorCode.MALFORMED, f"a reply of {len(parts)} parts instead of one"
                )
            reply = self._session.receive(parts[0], time.monotonic_ns())
            if reply is not None:
                return reply

    def wait(self, timeout_s: float, to_send: bool = False) -> bool:
        """Waits until something can be received, or sent.

        Args:
            timeout_s: longest wait.
            to_send: wait for a connection instead of a reply.

        Returns:
            Whether there is something to do.
        """
        timeout_ms = max(0, -int(-timeout_s * 1000 // 1))
        return bool(self.socket.poll(timeout_ms, zmq.POLLOUT if to_send else zmq.POLLIN))

    def close(self) -> None:
        """Closes the socket; what is unsent or unread is dropped. Idempotent."""
        self.socket.close(0)
