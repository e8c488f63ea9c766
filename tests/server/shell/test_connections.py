"""ZMQ's connections found by their address, and cut, over ipc and tcp."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from protocol.endpoint import Endpoint, parse
from server.shell import connections
from tests.faults import rawzmtp
from tests.wire.ports import free_port
from tests.wire.process import wait_until


@pytest.fixture(params=["ipc", "tcp"])
def served(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[tuple[Endpoint, object]]:
    url = f"ipc://{short_dir}/s" if request.param == "ipc" else f"tcp://127.0.0.1:{free_port()}"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(url)
        yield parse(url), router


def test_they_are_found_and_cut(served: tuple[Endpoint, zmq.Socket[bytes]]) -> None:
    endpoint, router = served
    assert connections.find(endpoint) == []
    with ExitStack() as stack:
        clients = [stack.enter_context(rawzmtp.greeted(endpoint.url)) for _ in range(3)]
        assert wait_until(lambda: len(connections.find(endpoint)) == 3)
        found = connections.find(endpoint)
        assert {one.pid for one in found} == {0 if endpoint.is_tcp else os.getpid()}
        assert connections.is_open(found[1])
        connections.cut(found[1])
        assert wait_until(lambda: not connections.is_open(found[1]))
        assert wait_until(lambda: len(connections.find(endpoint)) == 2)
        ended = []
        for client in clients:
            client.settimeout(0.2)
            try:
                ended.append(client.recv(1) == b"")
            except (TimeoutError, ConnectionResetError) as error:
                ended.append(isinstance(error, ConnectionResetError))
        assert sum(ended) == 1
        left = clients[ended.index(False)]
        left.sendall(rawzmtp.frame(b"hello" * 20))
        assert router.poll(10_000)
        assert router.recv_multipart()[1] == b"hello" * 20
        silent = sorted(one.is_silent for one in connections.find(endpoint))
        assert silent == ([False, True] if endpoint.is_tcp else [False, False])
    assert wait_until(lambda: connections.find(endpoint) == [])


def test_what_waits_in_a_connection_is_counted(short_dir: Path) -> None:
    """A listener that reads nothing stands in for a library that has no room for more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(short_dir / "s"))
        listener.listen()
        endpoint = parse(f"ipc://{short_dir}/s")
        with rawzmtp.connect(endpoint.url) as client:
            accepted, _ = listener.accept()
            with accepted:
                assert [one.waiting_bytes for one in connections.find(endpoint)] == [0]
                client.sendall(bytes(5000))
                assert connections.find(endpoint)[0].waiting_bytes >= 5000
                accepted.sendall(bytes(5000))
                assert connections.find(endpoint)[0].waiting_bytes >= 10_000


def test_cutting_what_is_gone_harms_nobody(short_dir: Path) -> None:
    connections.cut(connections.Connection(1 << 19, 1, 0, False, 0))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        # Its descriptor is another socket's now.
        stale = connections.Connection(ours.fileno(), 1, 0, False, 0)
        assert not connections.is_open(stale)
        connections.cut(stale)
        assert connections.find(parse(f"ipc://{short_dir}/s")) == []
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"


def test_descriptors_are_counted() -> None:
    before = connections.count_descriptors()
    held = [os.memfd_create("x") for _ in range(10)]
    assert connections.count_descriptors() == before + 10
    for fd in held:
        os.close(fd)
