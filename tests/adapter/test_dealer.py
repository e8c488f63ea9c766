"""One connection: HELLO, requests, what a server may answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from adapter.dealer import Dealer
from protocol import frames
from protocol.errors import ReplyMalformedError, RequestError
from protocol.frames import Reply
from protocol.ids import InstanceId, Token
from protocol.messages import Done, Op, Ping
from tests.adapter.responder import Responder, until


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


def connect(context: zmq.Context[zmq.Socket[bytes]], url: str) -> Dealer:
    return Dealer(context, url, InstanceId(os.urandom(16)), "test")


def answer(dealer: Dealer) -> Reply:
    reply: Reply = until(dealer.receive)
    return reply


def test_nothing_is_sent_before_the_connection_stands(
    context: zmq.Context[zmq.Socket[bytes]], short_dir: Path
) -> None:
    dealer = connect(context, f"ipc://{short_dir}/nobody")
    assert dealer.say_hello(Token(b"t" * 16)) is None
    assert not dealer.wait(0.01, to_send=True)
    assert dealer.receive() is None
    dealer.close()
    dealer.close()


def test_hello_then_requests(context: zmq.Context[zmq.Socket[bytes]], short_dir: Path) -> None:
    with Responder(short_dir) as server:
        dealer = connect(context, server.url)
        with pytest.raises(RequestError, match="HELLO"):
            dealer.send(Ping(), 1)
        assert dealer.wait(5, to_send=True)
        seq = dealer.say_hello(server.make_token())
        assert answer(dealer).seq == seq
        assert dealer.welcome is not None
        assert dealer.welcome.epoch == server.epoch
        seqs = [dealer.send(Ping(), 1) for _ in range(3)]
        assert [answer(dealer).seq for _ in seqs] == seqs
        dealer.close()


def test_replies_that_nobody_awaits_are_skipped_and_senseless_ones_refused(
    context: zmq.Context[zmq.Socket[bytes]], short_dir: Path
) -> None:
    router = context.socket(zmq.ROUTER)
    router.bind(f"ipc://{short_dir}/r")
    dealer = connect(context, f"ipc://{short_dir}/r")
    assert dealer.wait(5, to_send=True)
    assert dealer.say_hello(Token(b"")) is not None
    peer, _ = router.recv_multipart()
    router.send_multipart([peer, frames.pack_reply(Op.PING, 77, Done())])
    assert dealer.wait(5)
    assert dealer.receive() is None
    for parts in ([b"\xc1"], [b""], [b"a", b"b"], [os.urandom(64)]):
        router.send_multipart([peer, *parts])
        assert dealer.wait(5)
        with pytest.raises(ReplyMalformedError):
            dealer.receive()
    router.close(0)
    dealer.close()


def test_a_server_gone_is_told_by_not_sending(
    context: zmq.Context[zmq.Socket[bytes]], short_dir: Path
) -> None:
    router = context.socket(zmq.ROUTER)
    router.bind(f"ipc://{short_dir}/r")
    dealer = connect(context, f"ipc://{short_dir}/r")
    assert dealer.wait(5, to_send=True)
    router.close(0)
    until(lambda: dealer.say_hello(Token(b"t" * 16)) is None)
    dealer.close()


def test_endpoint_that_is_none(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with pytest.raises(zmq.ZMQError):
        connect(context, "nonsense")
