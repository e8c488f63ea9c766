"""Asks a server that runs on this node, as any client of the protocol would.

Introduces itself on the side socket, says HELLO with the token, asks, and leaves: while it is there
the server counts one process and one connection more. Must not know: command lines, engines.
Runs in: the thread of whoever asks, outside the server's process.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

import zmq

from protocol import __version__, limits, side
from protocol.endpoint import SIDE_SUFFIX
from protocol.errors import ErrorCode, ReplyMalformedError, RequestError, code_of
from protocol.ids import ID_BYTES, InstanceId, Token
from protocol.messages import (
    VERSION_MAJOR,
    VERSION_MINOR,
    Body,
    HelloReply,
    Request,
    Stats,
    StatsReply,
    Status,
    StatusReply,
)
from protocol.session import ClientSession

B = TypeVar("B", bound=Body)

_LOOK_S = 1.0


class EndpointRemovedError(OSError):
    """A server is there, and a file that leads to it is not any more: nobody new can come."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"somebody removed its socket {path}: engines that are connected go on, others cannot "
            "come any more. Restart the server: what is cached stays"
        )


class Asker:
    """A connection to a server; one question at a time.

    Args:
        dealer: connected.
        session: of this side.
        connection: on the side socket, which tells at once when the server ends.
    """

    def __init__(
        self, dealer: zmq.Socket[bytes], session: ClientSession, connection: socket.socket
    ) -> None:
        self._dealer = dealer
        self._session = session
        self._connection = connection
        self._poller = zmq.Poller()
        self._poller.register(dealer, zmq.POLLIN)
        self._poller.register(connection, zmq.POLLIN)

    def ask(self, body: Request, limit_s: float) -> Body:
        """Asks, and waits for the answer.

        Args:
            body: what.
            limit_s: longest wait, seconds.

        Returns:
            The reply's body.

        Raises:
            OSError: nobody answers in time, or the server ends.
            KvkeepError: the server refuses, or what answers speaks another protocol.
        """
        end_s = time.monotonic() + limit_s
        _, frame = self._session.request(body, time.monotonic_ns(), max(1, int(limit_s * 1e9)))
        return self._send(frame, end_s)

    def expect(self, body: Request, kind: type[B], limit_s: float) -> B:
        """Asks, and waits for an answer of one kind.

        Args:
            body: what.
            kind: of the answer.
            limit_s: longest wait, seconds.

        Returns:
            The answer.

        Raises:
            OSError: nobody answers in time.
            KvkeepError: the server refuses, or what answers speaks another protocol.
        """
        answer = self.ask(body, limit_s)
        if not isinstance(answer, kind):
            text = f"{type(answer).__name__} came, {kind.__name__} was awaited"
            raise ReplyMalformedError(ErrorCode.MALFORMED, text)
        return answer

    def stats(self, limit_s: float) -> dict[str, int]:
        """The counters, sorted by name; waits and raises as ``expect`` does."""
        return dict(sorted(self.expect(Stats(), StatsReply, limit_s).values.items()))

    def status(self, limit_s: float) -> StatusReply:
        """Who is there and how everything is; waits and raises as ``expect`` does."""
        return self.expect(Status(), StatusReply, limit_s)

    def greet(self, token: Token, end_s: float) -> None:
        """Says HELLO; the same errors."""
        _, frame = self._session.hello(token)
        if not isinstance(self._send(frame, end_s), HelloReply):
            raise ReplyMalformedError(
                ErrorCode.MALFORMED, "HELLO was not answered with HELLO's reply"
            )

    def _send(self, frame: bytes, end_s: float) -> Body:
        self._dealer.send(frame)
        while (left_s := end_s - time.monotonic()) > 0:
            ready = dict(self._poller.poll(int(left_s * 1000) + 1))
            if self._dealer not in ready:
                if ready and not self._connection.recv(limits.MAX_SIDE_BYTES):
                    raise ConnectionResetError("the server ended")
                continue
            reply = self._session.receive(self._dealer.recv(), time.monotonic_ns())
            if reply is None:
                continue
            if reply.error is not None:
                raise reply.error
            assert reply.body is not None
            return reply.body
        raise TimeoutError("it did not answer in time")


@contextmanager
def connected(side_path: str, limit_s: float, command: str) -> Iterator[Asker]:
    """Connects, and leaves again at the end.

    Args:
        side_path: of the server's side socket.
        limit_s: longest wait until it is connected, seconds.
        command: what asks, for the server's log.

    Raises:
        OSError: nobody listens there, or nobody answers in time.
        KvkeepError: the server refuses, or what answers speaks another protocol.
    """
    end_s = time.monotonic() + limit_s
    instance = InstanceId(os.urandom(ID_BYTES))
    kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
    with closing(socket.socket(socket.AF_UNIX, kind)) as connection:
        connection.settimeout(limit_s)
        connection.connect(side_path)
        welcome = _introduce(connection, instance)
        path = welcome.endpoint.removeprefix("ipc://")
        if path != welcome.endpoint and not os.path.exists(path):
            raise EndpointRemovedError(path)  # libzmq would wait for it
        # The token is good for as long as the side connection lives.
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.setsockopt(zmq.MAXMSGSIZE, limits.MAX_FRAME_BYTES)
            if "[" in welcome.endpoint:
                dealer.setsockopt(zmq.IPV6, 1)
            dealer.connect(welcome.endpoint)
            client = f"kvkeep {command} {__version__} pid {os.getpid()}"
            asker = Asker(dealer, ClientSession(instance, client), connection)
            asker.greet(Token(welcome.token), end_s)
            yield asker


def stats(side_path: str, limit_s: float) -> dict[str, int]:
    """Asks for the counters.

    Args:
        side_path: of the server's side socket.
        limit_s: longest wait for everything together, seconds.

    Returns:
        Counter name to value, sorted by name.

    Raises:
        OSError: nobody listens there, or nobody answers in time.
        KvkeepError: the server refuses, or what answers speaks another protocol.
    """
    end_s = time.monotonic() + limit_s
    with connected(side_path, limit_s, "stats") as asker:
        return asker.stats(max(0.001, end_s - time.monotonic()))


def reason(error: Exception, side_path: str) -> str:
    """Why nobody answered, for people.

    Args:
        error: of ``connected`` or ``Asker.ask``.
        side_path: of the server's side socket.
    """
    if isinstance(error, FileNotFoundError) and is_without_side(side_path):
        return str(EndpointRemovedError(side_path))
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"no server listens there: its side socket {side_path} does not exist"
    if isinstance(error, ConnectionRefusedError):
        return f"no server listens there any more: nobody has its side socket {side_path} open"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def is_without_side(side_path: str) -> bool:
    """Whether somebody listens at an ipc endpoint whose side socket is not there.

    Args:
        side_path: of that side socket.
    """
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)) as looks:
        looks.settimeout(_LOOK_S)
        try:
            looks.connect(side_path.removesuffix(SIDE_SUFFIX))
        except OSError:
            return False
    return True


def _introduce(connection: socket.socket, instance: InstanceId) -> side.Welcome:
    hello = side.SideHello(major=VERSION_MAJOR, minor=VERSION_MINOR, instance=instance)
    connection.send(side.pack(hello))
    packet = connection.recv(limits.MAX_SIDE_BYTES)
    if not packet:
        raise ConnectionResetError("the server closed the connection")
    answer = side.unpack_from_server(packet)
    if isinstance(answer, side.SideError):
        raise RequestError(code_of(answer.code), answer.message)
    if not isinstance(answer, side.Welcome):
        raise ReplyMalformedError(ErrorCode.MALFORMED, f"{type(answer).__name__} came, no welcome")
    return answer
