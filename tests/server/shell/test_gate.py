"""The gate before a real ROUTER: shut while connections are too many, open before and after."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from protocol.endpoint import parse
from server.shell import connections, gate
from server.shell.complaints import Complaints
from server.shell.gate import Gate
from tests.wire.process import wait_until


@pytest.fixture
def router(short_dir: Path) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as made:
        made.linger = 0
        made.bind(f"ipc://{short_dir}/s")
        yield made


def knock(url: str) -> socket.socket | None:
    """Connects without waiting; None while the queue is full of those who wait to be let in."""
    made = socket.socket(socket.AF_UNIX)
    made.setblocking(False)
    try:
        made.connect(url.removeprefix("ipc://"))
    except BlockingIOError:
        made.close()
        return None
    return made


def greets(url: str, wait_s: float) -> bool:
    """Whether ZMQ says something to who connects, so that it was let in."""
    one = knock(url)
    if one is None:
        return False
    with one:
        one.settimeout(wait_s)
        try:
            return bool(one.recv(1))
        except (TimeoutError, ConnectionResetError):
            return False


def test_a_rush_finds_it_shut_until_somebody_was_cut(
    short_dir: Path, router: zmq.Socket[bytes]
) -> None:
    url = f"ipc://{short_dir}/s"
    seen: list[bool] = []

    def thin_out() -> int:
        # Nobody is let in meanwhile, and who comes now waits.
        seen.append(greets(url, 0.2))
        found = connections.find(parse(url))
        for one in found:
            connections.cut(one)
        return len(found)

    made = Gate(parse(url), thin_out, Complaints())
    made.start()
    before = connections.count_descriptors()
    try:
        assert greets(url, 5.0)
        assert made.num_shut == 0
        with ExitStack() as stack:
            for _ in range(gate.MAX_BURST):  # with its other end here, two descriptors each
                one = knock(url)
                if one is None:
                    time.sleep(0.001)
                else:
                    stack.enter_context(one)
                if made.num_shut:
                    break
            assert wait_until(lambda: bool(seen))
            assert seen[0] is False
            assert wait_until(lambda: greets(url, 1.0))
        assert wait_until(lambda: connections.count_descriptors() <= before)
        assert made.is_alive()
    finally:
        assert made.stop(5.0)
    assert greets(url, 5.0)


def test_a_listener_is_exchanged_and_given_back_whole(
    short_dir: Path, router: zmq.Socket[bytes]
) -> None:
    url = f"ipc://{short_dir}/s"
    fd = connections.find_listener(parse(url))
    assert fd is not None
    inode = os.fstat(fd).st_ino
    made = Gate(parse(url), lambda: 0, Complaints())
    made.start()
    try:
        # As if there had been none at all before: it looks, finds nobody to cut, and opens again.
        begun_s = time.monotonic()
        assert made.look(-(2 * gate.MAX_BURST)) == connections.count_descriptors()
        assert time.monotonic() - begun_s < gate.SHUT_LIMIT_S
        assert (made.num_shut, os.fstat(fd).st_ino) == (1, inode)
        assert not os.get_inheritable(fd)
    finally:
        assert made.stop(5.0)
    assert os.fstat(fd).st_ino == inode
    router.unbind(url)
    assert wait_until(lambda: connections.find_listener(parse(url)) is None)


def test_without_a_listener_it_only_watches(short_dir: Path) -> None:
    cut: list[int] = []

    def thin_out() -> int:
        cut.append(1)
        return 0

    made = Gate(parse(f"ipc://{short_dir}/nobody"), thin_out, Complaints())
    made.start()
    assert made.look(-(2 * gate.MAX_BURST)) > 0
    assert cut == [1]
    assert made.stop(5.0)
