"""The side connection against a real listener: packets, descriptors, stray ones, ends."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.side import SideClosedError, SideConnection
from protocol import side
from protocol.errors import ErrorCode, UnreachableError
from tests.adapter.responder import ExtentFile, geometry, namespace, until


class Pair:
    """A connection and the server's end of it."""

    def __init__(self, folder: Path) -> None:
        self.path = f"{folder}/side"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(1)
        self.client = SideConnection(self.path)
        self.server = self.listener.accept()[0]

    def send(self, data: bytes, *fds: int) -> None:
        blob = array.array("i", fds).tobytes()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, blob)] if fds else []
        self.server.sendmsg([data], rights)

    def close(self) -> None:
        for end in (self.client, self.server, self.listener):
            end.close()


@pytest.fixture
def pair(short_dir: Path) -> Iterator[Pair]:
    pair = Pair(short_dir)
    yield pair
    pair.close()


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_packets_and_descriptors_pass_both_ways(pair: Pair) -> None:
    assert pair.client.receive() is None
    fd = os.memfd_create("pool")
    os.write(fd, b"pool")
    offer = side.PoolOffer(pool=b"p" * 16, size_bytes=4)
    pair.client.send(offer, fd)
    os.close(fd)
    data, fds, _, _ = socket.recv_fds(pair.server, 4096, 2)
    assert side.unpack_from_client(data) == offer
    assert os.pread(fds[0], 10, 0) == b"pool"
    os.close(fds[0])

    pair.send(side.pack(side.PoolAccepted(pool=b"p" * 16)))
    assert pair.client.receive() == (side.PoolAccepted(pool=b"p" * 16), None)


def test_extent_comes_with_its_descriptor_closed_on_exec(pair: Pair) -> None:
    file = ExtentFile(geometry(3, namespace()), b"a" * 16)  # type: ignore[arg-type]
    pair.send(side.pack(file.given(1)), file.fd)
    received = pair.client.receive()
    assert received is not None
    packet, fd = received
    assert packet == file.given(1)
    assert fd is not None
    assert not os.get_inheritable(fd)
    assert os.pread(fd, 8, 0) == b"KVKEEPEX"
    os.close(fd)
    file.close()


@pytest.mark.parametrize("case", ["garbage", "two", "missing", "surplus", "long", "pickle"])
def test_senseless_packets_end_the_connection_and_leak_nothing(pair: Pair, case: str) -> None:
    file = ExtentFile(geometry(3, namespace()), b"a" * 16)  # type: ignore[arg-type]
    extent, accepted = side.pack(file.given(1)), side.pack(side.PoolAccepted(pool=b"p" * 16))
    before = num_fds()
    if case == "garbage":
        pair.send(os.urandom(100), file.fd)
    elif case == "pickle":
        pair.send(b"\x80\x04\x95cos\nsystem\n.")
    elif case == "two":
        pair.send(extent, file.fd, file.fd)
    elif case == "missing":
        pair.send(extent)
    elif case == "surplus":
        pair.send(accepted, file.fd)
    else:
        pair.send(bytes(5000))
    with pytest.raises(SideClosedError):
        pair.client.receive()
    assert num_fds() == before
    file.close()


def test_end_of_the_server_is_told(pair: Pair) -> None:
    pair.server.close()
    with pytest.raises(SideClosedError, match="closed"):
        pair.client.receive()
    with pytest.raises(SideClosedError):
        pair.client.send(side.PoolOffer(pool=b"p" * 16, size_bytes=4))


def test_nobody_there(short_dir: Path) -> None:
    before = num_fds()
    with pytest.raises(UnreachableError) as caught:
        SideConnection(f"{short_dir}/nobody")
    assert caught.value.code == ErrorCode.UNAVAILABLE
    assert num_fds() == before


def test_a_full_backlog_is_no_wait(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{short_dir}/side")
        listener.listen(0)
        waiting: list[SideConnection] = []

        def connect() -> bool:
            try:
                waiting.append(SideConnection(f"{short_dir}/side"))
            except UnreachableError:
                return True
            return False

        until(connect)
        for connection in waiting:
            connection.close()
