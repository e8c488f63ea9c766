"""When a server that is just being started answers its first PING.

Purpose: connect as soon as its side socket is there, say HELLO, ask PING, and note the time. Must
not know: how it was started. Runs in: the load generator's main thread.
"""

from __future__ import annotations

import secrets
import socket
import time

import zmq

from adapter.conformance.loadgen.engine import LoadgenError
from adapter.dealer import Dealer
from protocol import endpoint, limits, side
from protocol.ids import ID_BYTES, InstanceId, Token
from protocol.messages import VERSION_MAJOR, VERSION_MINOR, Done, Ping

_RETRY_S = 0.001


def first_answer_ns(url: str, timeout_s: float) -> int:
    """Waits for a server's first answer.

    Args:
        url: an ipc endpoint; nobody need listen there yet.
        timeout_s: when to give up.

    Returns:
        The monotonic clock when the reply to PING was there, in ns.

    Raises:
        LoadgenError: no answer in time, or a refusal.
    """
    deadline = time.monotonic() + timeout_s
    path = endpoint.parse(url).side_path("")
    instance = InstanceId(secrets.token_bytes(ID_BYTES))
    with _connect(path, deadline) as channel:
        channel.settimeout(max(0.001, deadline - time.monotonic()))
        channel.send(
            side.pack(side.SideHello(major=VERSION_MAJOR, minor=VERSION_MINOR, instance=instance))
        )
        welcome = side.unpack_from_server(channel.recv(limits.MAX_SIDE_BYTES))
        if not isinstance(welcome, side.Welcome):
            raise LoadgenError(f"the side socket answered {welcome}")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        dealer = Dealer(context, welcome.endpoint, instance, "kvkeep bench")
        try:
            return _ping(dealer, Token(welcome.token), deadline)
        finally:
            dealer.close()
            context.term()


def _connect(path: str, deadline: float) -> socket.socket:
    while True:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            channel.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            channel.close()
            if time.monotonic() >= deadline:
                raise LoadgenError(f"nobody listens at {path}") from None
            time.sleep(_RETRY_S)
        else:
            return channel


def _ping(dealer: Dealer, token: Token, deadline: float) -> int:
    if not dealer.wait(deadline - time.monotonic(), to_send=True) or not dealer.say_hello(token):
        raise LoadgenError("the endpoint takes no HELLO")
    _await(dealer, deadline)
    dealer.send(Ping(), 10.0)
    _await(dealer, deadline)
    return time.monotonic_ns()


def _await(dealer: Dealer, deadline: float) -> None:
    while dealer.wait(deadline - time.monotonic()):
        reply = dealer.receive()
        if reply is None:
            continue
        if reply.error is not None:
            raise LoadgenError(f"a first request was refused: {reply.error}")
        if dealer.welcome is not None or isinstance(reply.body, Done):
            return
    raise LoadgenError("no answer in time")
