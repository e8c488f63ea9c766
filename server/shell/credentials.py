"""Who is at the other end of a unix socket, and a way to see that process end.

Purpose: the kernel names the process (never a number from a message), and a pidfd tells its exit
(design rule 5). Must not know: what peers may do. Runs in: the side socket's thread.
"""

from __future__ import annotations

import array
import errno
import functools
import os
import select
import socket
import struct

from protocol.errors import ErrorCode, RequestError
from server.shell.access import Access

_SO_PEERGROUPS = 59
_SO_PEERPIDFD = 77
_UCRED = struct.Struct("iII")
_GROUPS_ROOM_BYTES = 1024


def watch_peer(connection: socket.socket, access: Access) -> int:
    """Opens a pidfd of the process that connected.

    Args:
        connection: accepted unix socket.
        access: who may connect.

    Returns:
        A pidfd, close-on-exec; readable once the process has exited. The caller closes it.

    Raises:
        RequestError: NOT_PERMITTED for a user whom ``access`` does not admit, UNWATCHABLE_PEER
            when the exit cannot be seen (another pid namespace, a kernel without pidfds).
    """
    pid, uid = peer_ids(connection)
    if not access.admits(uid, peer_groups(connection)):
        members = "" if access.gid is None else f" and members of group {access.gid}"
        raise RequestError(
            ErrorCode.NOT_PERMITTED,
            f"this server serves user {access.uid}{members}, not user {uid}",
        )
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:  # a kernel before 6.5
            return open_by_pid(pid, connection)
        raise _unwatchable(f"process {pid} cannot be watched: {error.strerror}") from error
    os.set_inheritable(pidfd, False)
    return pidfd


def peer_ids(connection: socket.socket) -> tuple[int, int]:
    """Process and user id at the time of connect().

    Args:
        connection: accepted unix socket.

    Returns:
        (pid, uid); pid 0 when it lies in a pid namespace that this process cannot see.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return pid, uid


def peer_groups(connection: socket.socket) -> frozenset[int] | None:
    """Groups of a process at the time of connect().

    Args:
        connection: accepted unix socket.

    Returns:
        Its primary group and supplementary ones; None when they are more than 256, or the kernel
        (before 4.13) does not tell.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, _, primary = _UCRED.unpack(raw)
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_ROOM_BYTES)
    except OSError:  # the mode of the socket has let it connect, whatever groups it is in
        return None
    return frozenset({primary, *array.array("I", raw)})


def stand_in(pidfd: int) -> int:
    """A number for a process whose own cannot be seen from here, to tell it from others.

    Args:
        pidfd: of the process.

    Returns:
        Below 0, the same for each pidfd of that process and never for one of another; 0 where the
        kernel (before 6.9) tells none from any other.
    """
    found = os.fstat(pidfd)
    return 0 if found.st_dev == _anonymous_device() else -found.st_ino


def stand_in_of_peer(connection: socket.socket) -> int:
    """The same of the process at the other end; 0 as well when it cannot be told just now.

    Args:
        connection: accepted unix socket.
    """
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:  # an old kernel, or out of descriptors
        return 0
    try:
        return stand_in(pidfd)
    finally:
        os.close(pidfd)


@functools.cache
def _anonymous_device() -> int:
    """Where files lie that are all one and the same, as pidfds were."""
    fd = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def open_by_pid(pid: int, connection: socket.socket) -> int:
    """Opens a pidfd where the kernel does not give one by the socket.

    Args:
        pid: of the process that connected.
        connection: to it.

    Returns:
        A pidfd; the caller closes it.

    Raises:
        RequestError: UNWATCHABLE_PEER.
    """
    if pid <= 0:
        raise _unwatchable(
            "the process lies in a pid namespace that the server cannot see, so its exit could "
            "not be noticed; run both in one (containers: share the host's pid namespace)"
        )
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise _unwatchable(f"process {pid} cannot be watched: {error.strerror}") from error
    # The number could have passed on to another process if the peer had ended before; then its
    # end of the connection would be closed.
    poller = select.poll()
    poller.register(connection, select.POLLRDHUP)
    if poller.poll(0):
        os.close(pidfd)
        raise _unwatchable(f"process {pid} has closed the connection already")
    return pidfd


def _unwatchable(message: str) -> RequestError:
    return RequestError(ErrorCode.UNWATCHABLE_PEER, message)
