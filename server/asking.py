"""Asks a server that runs on this node for its counters, as any client of the protocol would.

Introduces itself on the side socket, says HELLO with the token, asks once, and leaves: while it is
there the server counts one process and one connection more. Must not know: command lines, engines.
Runs in: the thread of whoever asks, outside the server's process.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import closing

import zmq

from protocol import __version__, limits, side
from protocol.errors import ErrorCode, ReplyMalformedError, RequestError, code_of
from protocol.ids import ID_BYTES, InstanceId, Token
from protocol.messages import VERSION_MAJOR, VERSION_MINOR, Body, HelloReply, Stats, StatsReply
from protocol.session import ClientSession


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
    instance = InstanceId(os.urandom(ID_BYTES))
    kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
    with closing(socket.socket(socket.AF_UNIX, kind)) as connection:
        connection.settimeout(limit_s)
        connection.connect(side_path)
        welcome = _introduce(connection, instance)
        # The token is good for as long as the side connection lives.
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.setsockopt(zmq.MAXMSGSIZE, limits.MAX_FRAME_BYTES)
            if "[" in welcome.endpoint:
                dealer.setsockopt(zmq.IPV6, 1)
            dealer.connect(welcome.endpoint)
            values = _ask(dealer, Token(welcome.token), instance, end_s)
    return dict(sorted(values.items()))


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


def _ask(
    dealer: zmq.Socket[bytes], token: Token, instance: InstanceId, end_s: float
) -> dict[str, int]:
    session = ClientSession(instance, f"kvkeep stats {__version__} pid {os.getpid()}")
    _, frame = session.hello(token)
    dealer.send(frame)
    welcome = _reply(dealer, session, end_s)
    if not isinstance(welcome, HelloReply):
        raise ReplyMalformedError(ErrorCode.MALFORMED, "HELLO was not answered with HELLO's reply")
    left_ns = max(1, int((end_s - time.monotonic()) * 1e9))
    _, frame = session.request(Stats(), time.monotonic_ns(), left_ns)
    dealer.send(frame)
    reply = _reply(dealer, session, end_s)
    if not isinstance(reply, StatsReply):
        raise ReplyMalformedError(ErrorCode.MALFORMED, "STATS was not answered with counters")
    return reply.values


def _reply(dealer: zmq.Socket[bytes], session: ClientSession, end_s: float) -> Body | None:
    while (left_s := end_s - time.monotonic()) > 0:
        if not dealer.poll(int(left_s * 1000) + 1):
            break
        reply = session.receive(dealer.recv(), time.monotonic_ns())
        if reply is None:
            continue
        if reply.error is not None:
            raise reply.error
        return reply.body
    raise TimeoutError("it did not answer in time")
