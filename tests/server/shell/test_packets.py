"""Descriptors on packets: taken exactly, closed otherwise; pools that stay whole only."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol import limits
from protocol.errors import ErrorCode, RequestError
from server.shell import packets

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def num_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_packet_and_descriptor_arrive_and_close_on_exec(pair: Pair) -> None:
    fd = os.memfd_create("x")
    os.write(fd, b"content")
    packets.send(pair[0], b"packet", fd)
    os.close(fd)
    packet, fds, cut = packets.receive(pair[1])
    assert (packet, len(fds), cut) == (b"packet", 1, False)
    assert os.pread(fds[0], 7, 0) == b"content"
    assert not os.get_inheritable(fds[0])
    packets.close_all(fds)


def test_more_descriptors_than_there_is_room_for_leave_none_open(pair: Pair) -> None:
    fd = os.memfd_create("x")
    before = num_open()
    socket.send_fds(pair[0], [b"packet"], [fd] * 40)
    _, fds, cut = packets.receive(pair[1])
    assert cut
    packets.close_all(fds)
    assert num_open() == before
    os.close(fd)


def test_a_packet_beyond_the_limit_is_cut_and_says_so(pair: Pair) -> None:
    pair[0].send(bytes(3 * limits.MAX_SIDE_BYTES))
    packet, _, cut = packets.receive(pair[1])
    assert cut
    assert len(packet) == limits.MAX_SIDE_BYTES + 1


def send_many(connection: socket.socket) -> None:
    for _ in range(100_000):
        packets.send(connection, bytes(1000), -1)


def test_neither_end_blocks(pair: Pair) -> None:
    with pytest.raises(BlockingIOError):
        packets.receive(pair[1])
    with pytest.raises(BlockingIOError):
        send_many(pair[0])
    pair[1].close()
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        packets.send(pair[0], b"x", -1)


def sealed(num_bytes: int, seals: int) -> int:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


BOTH = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@pytest.mark.parametrize("more", [0, fcntl.F_SEAL_SEAL])
def test_a_sealed_pool_of_the_stated_length_is_fit(more: int) -> None:
    fd = sealed(8192, BOTH | more)
    packets.check_pool_file(fd, 8192)
    os.close(fd)


@pytest.mark.parametrize(
    ("seals", "stated", "words"),
    [
        (0, 8192, "F_SEAL_SHRINK and F_SEAL_GROW"),
        (fcntl.F_SEAL_GROW, 8192, "F_SEAL_SHRINK"),
        (fcntl.F_SEAL_SHRINK, 8192, "F_SEAL_GROW"),
        (BOTH, 8193, "8192 bytes, 8193 were stated"),
        (BOTH, 4096, "8192 bytes, 4096 were stated"),
    ],
)
def test_an_unsealed_or_shorter_pool_is_refused_by_name(
    seals: int, stated: int, words: str
) -> None:
    fd = sealed(8192, seals)
    with pytest.raises(RequestError, match=words) as caught:
        packets.check_pool_file(fd, stated)
    assert caught.value.code == ErrorCode.POOL_INVALID
    os.close(fd)


SIZE = 2 << 20


def strange(kind: str, folder: Path) -> int:
    """A descriptor that is no pool, of one kind."""
    if kind in ("write only", "path"):
        whole = sealed(SIZE, BOTH)
        fd = os.open(f"/proc/self/fd/{whole}", os.O_PATH if kind == "path" else os.O_WRONLY)
        os.close(whole)
        return fd
    if kind == "huge pages":
        fd = os.memfd_create("x", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        os.ftruncate(fd, SIZE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, BOTH)
        return fd
    if kind in ("not sealable", "tmpfs file", "disk file"):
        if kind == "not sealable":
            fd = os.memfd_create("x")
        elif kind == "tmpfs file":
            fd = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
        else:
            with tempfile.TemporaryFile(dir=".") as file:
                fd = os.dup(file.fileno())
        os.truncate(fd, SIZE)
        return fd
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    others = {
        "pipe": lambda: os.dup(reader),
        "socket": lambda: os.dup(ours.fileno()),
        "folder": lambda: os.open(folder, os.O_RDONLY),
        "device": lambda: os.open("/dev/zero", os.O_RDWR),
        "event": lambda: os.eventfd(0) if hasattr(os, "eventfd") else os.dup(reader),
        "process": lambda: os.pidfd_open(os.getpid()),
        "proc file": lambda: os.open("/proc/self/mem", os.O_RDONLY),
    }
    fd = others[kind]()
    os.close(reader)
    os.close(writer)
    ours.close()
    theirs.close()
    return fd


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("pipe", "no memory file"),
        ("socket", "no memory file"),
        ("folder", "no memory file"),
        ("device", "no memory file"),
        ("event", "no memory file|cannot be sealed|not opened"),
        ("process", "no memory file|cannot be sealed|not opened"),
        ("proc file", "cannot be sealed"),
        ("disk file", "cannot be sealed"),
        ("tmpfs file", "lacks F_SEAL_SHRINK and F_SEAL_GROW"),
        ("not sealable", "lacks F_SEAL_SHRINK and F_SEAL_GROW"),
        ("write only", "not opened for reading"),
        ("path", "not opened for reading"),
        ("huge pages", "huge pages"),
    ],
)
def test_p13_what_is_no_pool_is_refused_whatever_it_is(
    shm_dir: Path, kind: str, words: str
) -> None:
    fd = strange(kind, shm_dir)
    with pytest.raises(RequestError, match=words) as caught:
        packets.check_pool_file(fd, SIZE)
    assert caught.value.code == ErrorCode.POOL_INVALID
    os.close(fd)
