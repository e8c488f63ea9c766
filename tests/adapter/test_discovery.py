"""Asking a tcp server where its side socket is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from adapter.discovery import Discovery
from protocol.errors import ErrorCode, RequestError, UnreachableError
from protocol.ids import InstanceId
from protocol.messages import Body, Op, Request
from tests.adapter.responder import Responder, until


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


def ask(context: zmq.Context[zmq.Socket[bytes]], url: str, within_s: float = 5.0) -> Discovery:
    until_ns = time.monotonic_ns() + int(within_s * 1e9)
    return Discovery(context, url, InstanceId(os.urandom(16)), "test", until_ns)


def answered(discovery: Discovery) -> str | None:
    discovery.turn(time.monotonic_ns())
    return discovery.path


def test_path_is_learnt(context: zmq.Context[zmq.Socket[bytes]], short_dir: Path) -> None:
    with Responder(short_dir, "tcp://127.0.0.1:*") as server:
        discovery = ask(context, server.url)
        assert until(lambda: answered(discovery)) == server.base + ".side"
        discovery.close()


def test_nobody_answers(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    discovery = ask(context, "tcp://127.0.0.1:9", within_s=0.05)
    with pytest.raises(UnreachableError) as caught:
        until(lambda: answered(discovery))
    assert caught.value.code == ErrorCode.DEADLINE_EXCEEDED
    discovery.close()


def test_a_server_without_a_path(context: zmq.Context[zmq.Socket[bytes]], short_dir: Path) -> None:
    def refuse(_: Request) -> Body:
        raise RequestError(ErrorCode.UNAUTHENTICATED, "no token", side="relative/path")

    with Responder(short_dir, "tcp://127.0.0.1:*") as server:
        server.handlers[Op.HELLO] = refuse
        discovery = ask(context, server.url)
        with pytest.raises(UnreachableError, match="did not name"):
            until(lambda: answered(discovery))
        discovery.close()


def test_endpoint_that_is_none(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with pytest.raises(UnreachableError):
        ask(context, "nonsense")
