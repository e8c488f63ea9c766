"""The connections that ZMQ has accepted, seen from outside of it.

Purpose: ZMQ neither lists them nor closes one; here they are found among this process's descriptors
by the address they are bound to, and can be cut. ZMQ notices a cut as it notices a peer's end, and
drops whatever it had of it. Must not know: messages, policy. Runs in: the guard's thread.

The descriptors belong to ZMQ, which may close one at any moment and have its number used again. A
cut may therefore, once in a blue moon, hit another socket of this process. None of them is one that
the server cannot go on without: each is made again by its owner.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import stat
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protocol.endpoint import Endpoint
from server.shell.credentials import peer_ids, stand_in_of_peer

_TCP_INFO_BYTES = 136
_RECEIVED_AT = 128
"""Offset of ``tcpi_bytes_received`` in ``struct tcp_info``."""

_HANDSHAKE_BYTES = 128
"""Who sent no more than this has said nothing but ZMQ's own greeting."""

MAX_NUMBER = 1 << 16
"""Numbers of descriptors are lower: peers, extents and connections together are far fewer."""

_FOLDER = "/proc/self/fd"


@dataclass(frozen=True)
class Connection:
    """One accepted connection.

    Attributes:
        fd: ZMQ's descriptor.
        inode: of the socket, which tells it from one that gets the same descriptor later.
        pid: of the process that connected; below 0 a number that stands in for one in a pid
            namespace that cannot be seen; 0 where the kernel does not say (tcp, such a namespace on
            an old kernel).
        is_silent: whether it never sent a message, as far as the kernel says (tcp).
        waiting_bytes: that it sent and ZMQ has not read, and that ZMQ sent and it has not read.
    """

    fd: int
    inode: int
    pid: int
    is_silent: bool
    waiting_bytes: int


def count_descriptors() -> int:
    """Open descriptors of this process."""
    return os.stat(_FOLDER).st_size or len(os.listdir(_FOLDER))  # a kernel before 6.2 says 0


def find(endpoint: Endpoint) -> list[Connection]:
    """Every connection to an endpoint, in order of descriptors; finds them without one to spare.

    Args:
        endpoint: that this process listens on.
    """
    address = endpoint.path if not endpoint.is_tcp else endpoint.port
    found = []
    for fd in _sockets():
        connection = _look(fd, address)
        if connection is not None:
            found.append(connection)
    return found


def find_listener(endpoint: Endpoint) -> int | None:
    """ZMQ's descriptor of the socket that listens at an endpoint; None without one.

    Args:
        endpoint: that this process listens on.
    """
    address = endpoint.path if not endpoint.is_tcp else endpoint.port
    for fd in _sockets():
        try:
            with _borrowed(fd) as one:
                is_stream = one.type == socket.SOCK_STREAM and _is_bound_to(one, address)
                if is_stream and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    return fd
        except OSError:  # closed meanwhile
            continue
    return None


def _sockets() -> Iterator[int]:
    """Descriptors that are sockets. Numbers lie close together, as the lowest is always taken."""
    left = count_descriptors()
    # Some may be closed meanwhile, and the limit is a thousand million in some containers.
    for fd in range(min(MAX_NUMBER, resource.getrlimit(resource.RLIMIT_NOFILE)[0])):
        if left <= 0:
            return
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            continue
        left -= 1
        if stat.S_ISSOCK(mode):
            yield fd


@contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket]:
    """A socket object for a descriptor that stays its owner's."""
    borrowed = socket.socket(fileno=fd)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def _look(fd: int, address: str | int) -> Connection | None:
    try:
        with _borrowed(fd) as one:
            if one.type != socket.SOCK_STREAM or not _is_bound_to(one, address):
                return None
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return None
            pid, is_silent = 0, False
            if one.family == socket.AF_UNIX:
                pid = peer_ids(one)[0] or stand_in_of_peer(one)
            else:
                is_silent = _received_bytes(one) <= _HANDSHAKE_BYTES
            waiting_bytes = _ioctl(fd, termios.FIONREAD) + _ioctl(fd, termios.TIOCOUTQ)
            return Connection(fd, os.fstat(fd).st_ino, pid, is_silent, waiting_bytes)
    except OSError:  # closed meanwhile, or not connected any more
        return None


def _is_bound_to(one: socket.socket, address: str | int) -> bool:
    if one.family == socket.AF_UNIX:
        return bool(one.getsockname() == address)
    is_tcp = one.family in (socket.AF_INET, socket.AF_INET6)
    return is_tcp and bool(one.getsockname()[1] == address)


def _received_bytes(one: socket.socket) -> int:
    raw = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return int.from_bytes(raw[_RECEIVED_AT:_TCP_INFO_BYTES], sys.byteorder)


def _ioctl(fd: int, request: int) -> int:
    value: int = struct.unpack("i", fcntl.ioctl(fd, request, b"\0\0\0\0"))[0]
    return value


def cut(connection: Connection) -> None:
    """Ends a connection; ZMQ closes it and forgets what it had of it.

    Args:
        connection: from ``find``, just now.
    """
    try:
        with _borrowed(connection.fd) as one:
            if os.fstat(connection.fd).st_ino != connection.inode:
                return
            one.shutdown(socket.SHUT_RDWR)
    except OSError:  # it ended by itself
        pass


def is_open(connection: Connection) -> bool:
    """Whether ZMQ still has a connection's descriptor open."""
    try:
        return os.fstat(connection.fd).st_ino == connection.inode
    except OSError:
        return False
