"""Packets with descriptors over SOCK_SEQPACKET, and what makes a passed file fit for a pool.

Purpose: take exactly the descriptors a packet should carry and close every other one. Must not
know: peers, pools by name. Runs in: the side socket's thread.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import stat

from protocol import limits
from protocol.errors import ErrorCode, RequestError

#: Room for a few more than allowed, so that they arrive here to be closed and refused; what does
#: not even fit is closed by the kernel.
_FD_ROOM = socket.CMSG_SPACE(8 * array.array("i").itemsize)
_SEALS = {fcntl.F_SEAL_SHRINK: "F_SEAL_SHRINK", fcntl.F_SEAL_GROW: "F_SEAL_GROW"}


def receive(connection: socket.socket) -> tuple[bytes, list[int], bool]:
    """Reads one packet without blocking.

    Args:
        connection: SOCK_SEQPACKET.

    Returns:
        The packet (empty at the end of the connection), its descriptors, which the caller
        closes, and whether packet or descriptors were cut.

    Raises:
        OSError: nothing to read (BlockingIOError), or the connection broke.
    """
    packet, ancillary, flags, _ = connection.recvmsg(
        limits.MAX_SIDE_BYTES + 1, _FD_ROOM, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    )
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    cut = bool(flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC))
    return packet, fds.tolist(), cut


def send(connection: socket.socket, packet: bytes, fd: int) -> None:
    """Sends one packet without blocking.

    Args:
        connection: SOCK_SEQPACKET.
        packet: at most MAX_SIDE_BYTES.
        fd: descriptor to pass, or -1.

    Raises:
        OSError: no room (BlockingIOError), or the connection broke.
    """
    rights = []
    if fd >= 0:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    connection.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def close_all(fds: list[int]) -> None:
    """Closes descriptors that a peer passed."""
    for fd in fds:
        os.close(fd)


def check_pool_file(fd: int, size_bytes: int) -> None:
    """Checks that a passed file stays mapped whole, whatever its owner does to it later.

    Args:
        fd: as passed.
        size_bytes: length that the peer states.

    Raises:
        RequestError: POOL_INVALID naming the missing seal or the real length.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise RequestError(ErrorCode.POOL_INVALID, "the descriptor is no memory file")
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_WRONLY:
        raise RequestError(ErrorCode.POOL_INVALID, "the pool's file was not opened for reading")
    if os.fstatvfs(fd).f_bsize > mmap.PAGESIZE:
        # Pages that its owner gives back may not be had again: reading there is SIGBUS.
        raise RequestError(
            ErrorCode.POOL_INVALID,
            "the pool's file is made of huge pages, which cannot be read safely; a pool is a "
            "memfd made without MFD_HUGETLB",
        )
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise RequestError(
            ErrorCode.POOL_INVALID,
            "the file cannot be sealed; a pool is a memfd made with MFD_ALLOW_SEALING",
        ) from error
    missing = [name for seal, name in _SEALS.items() if not seals & seal]
    if missing:
        raise RequestError(
            ErrorCode.POOL_INVALID,
            f"the pool's file lacks {' and '.join(missing)}: it could change its length under the "
            "server",
            missing_seals=",".join(missing),
        )
    if found.st_size != size_bytes:
        raise RequestError(
            ErrorCode.POOL_INVALID,
            f"the pool's file has {found.st_size} bytes, {size_bytes} were stated",
            file_bytes=found.st_size,
            stated_bytes=size_bytes,
        )
