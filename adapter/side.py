"""The side connection: the unix socket over which identity and descriptors travel.

Its end tells that the server is gone or does not want this process any more.

Must not know: ZMQ, sessions, what a descriptor is mapped to. Belongs to the keeper's thread.
"""

from __future__ import annotations

import array
import os
import socket
from typing import Final

from adapter.stranger import check_server
from protocol import limits, side
from protocol.errors import ErrorCode, RequestError, UnreachableError

_MAX_FDS_READ: Final = 8
"""Room for more descriptors than allowed, so that surplus ones are seen and closed."""


class SideClosedError(UnreachableError):
    """The server closed the side connection, or said something senseless on it."""


class SideConnection:
    """One connected side socket.

    Attributes:
        path: where the server listens.
    """

    def __init__(self, path: str, is_told: bool = False) -> None:
        """Connects; a listening socket takes it at once or not at all.

        Args:
            path: of the server's side socket.
            is_told: whether whoever listens on a tcp port named the path, instead of a setting.

        Raises:
            UnreachableError: nobody listens there, or the backlog is full (UNAVAILABLE); or the
                listener is another user's where no administrator put it (NOT_PERMITTED).
        """
        self.path = path
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_UNIX, kind)
        try:
            self._socket.connect(path)
            check_server(self._socket, path, is_told)
        except OSError as error:
            self._socket.close()
            raise UnreachableError(
                ErrorCode.UNAVAILABLE, f"no server at {path}: {error.strerror or error}"
            ) from error
        except UnreachableError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """The descriptor, for polling."""
        return self._socket.fileno()

    def send(self, packet: side.FromClient, fd: int | None = None) -> None:
        """Sends a packet; two or three short ones are all that is ever sent, so they fit.

        Args:
            packet: what to say.
            fd: descriptor to pass along.

        Raises:
            SideClosedError: the server is gone or does not read.
        """
        rights = []
        if fd is not None:
            blob = array.array("i", [fd]).tobytes()
            rights.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, blob))
        try:
            self._socket.sendmsg([side.pack(packet)], rights, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise SideClosedError(
                ErrorCode.UNAVAILABLE, f"the side connection broke: {error.strerror or error}"
            ) from error

    def receive(self) -> tuple[side.FromServer, int | None] | None:
        """Takes one packet without waiting.

        Returns:
            The packet and the descriptor that came with it, which the caller owns; None when
            nothing is there.

        Raises:
            SideClosedError: the connection ended, or the packet breaks the protocol.
        """
        room = socket.CMSG_SPACE(_MAX_FDS_READ * 4)
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                limits.MAX_SIDE_BYTES, room, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise SideClosedError(
                ErrorCode.UNAVAILABLE, f"the side connection broke: {error.strerror or error}"
            ) from error
        fds = _descriptors(ancillary)
        try:
            if not data and not fds:
                raise SideClosedError(
                    ErrorCode.UNAVAILABLE, "the server closed the side connection"
                )
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(fds) > 1:
                raise SideClosedError(ErrorCode.MALFORMED, "a side packet is too long")
            packet = side.unpack_from_server(data)
            if bool(fds) != isinstance(packet, side.ExtentGiven):
                raise SideClosedError(
                    ErrorCode.NO_DESCRIPTORS,
                    f"a side packet {type(packet).__name__} with {len(fds)} descriptors",
                )
        except (SideClosedError, RequestError) as error:
            for fd in fds:
                os.close(fd)
            if isinstance(error, SideClosedError):
                raise
            raise SideClosedError(
                error.code, f"a senseless side packet: {error.message}"
            ) from error
        return packet, fds[0] if fds else None

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._socket.close()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, blob in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(blob[: len(blob) - len(blob) % fds.itemsize])
    return fds.tolist()
