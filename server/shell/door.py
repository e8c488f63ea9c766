"""The listening end of the side socket: lets in what can be watched, refuses the rest.

Purpose: a connection comes out of here with the pidfd of its process, or not at all. Must not
know: what peers say. Runs in: made in the main thread, then in the side socket's thread.
"""

from __future__ import annotations

import os
import socket
import stat

from protocol import limits, side
from protocol.errors import ConfigError, ErrorCode, KvkeepError, RequestError
from server.shell import clock, packets
from server.shell.complaints import Complaints
from server.shell.credentials import watch_peer

MAX_PEERS = 1024
_PAUSE_NS = clock.NS_PER_S // 2
_BACKLOG = 128


class Door:
    """A bound, listening unix socket of packets.

    Args:
        path: of the socket; a stale socket there is removed, so the caller holds the lock.
        complaints: counts who is refused.

    Attributes:
        socket: to be watched for reading while ``closed_until_ns`` is 0.
        closed_until_ns: end of a pause after descriptors ran out, or 0.
    """

    def __init__(self, path: str, complaints: Complaints) -> None:
        """Binds and listens.

        Raises:
            ConfigError: INVALID_CONFIG when the socket cannot be made.
        """
        self._path = path
        self._complaints = complaints
        self.closed_until_ns = 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            remove_stale_socket(path)
            self.socket.bind(path)
            os.chmod(path, 0o600)  # before listen: nobody can have connected yet
            self.socket.listen(_BACKLOG)
            self.socket.setblocking(False)
        except ConfigError:
            self.socket.close()
            raise
        except OSError as error:
            self.socket.close()
            raise ConfigError(
                ErrorCode.INVALID_CONFIG,
                f"the side socket {path} cannot be made: {error.strerror or error}",
            ) from error

    def admit(self, num_peers: int) -> tuple[socket.socket, int] | None:
        """Accepts one connection.

        Args:
            num_peers: processes that are watched already.

        Returns:
            Connection and pidfd, or None: nobody there, refused, or out of descriptors, in
            which case ``closed_until_ns`` says how long not to look, since looking would spin.
        """
        try:
            connection, _ = self.socket.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            self._complaints.note("side_accept", f"cannot accept: {error}")
            self.closed_until_ns = clock.now_ns() + _PAUSE_NS
            return None
        connection.setblocking(False)
        try:
            if num_peers >= MAX_PEERS:
                raise RequestError(
                    ErrorCode.LIMIT_EXCEEDED, f"at most {MAX_PEERS} processes may be connected"
                )
            return connection, watch_peer(connection)
        except RequestError as error:
            self._complaints.note("side_refused", str(error))
            try:
                packets.send(connection, error_packet(error), -1)
            except OSError:
                pass
            connection.close()
            return None

    def close(self) -> None:
        """Stops listening and removes the socket's file."""
        self.socket.close()
        _unlink(self._path)


def error_packet(error: KvkeepError, pool: bytes = b"") -> bytes:
    """What a refused peer is told.

    Args:
        error: why.
        pool: the pool it is about, or empty.

    Returns:
        A SideError packet.
    """
    message = error.message[: limits.MAX_TEXT_CHARS]
    return side.pack(side.SideError(code=int(error.code), message=message, pool=pool))


def remove_stale_socket(path: str) -> None:
    """Removes what a dead predecessor left at the path of a socket.

    Args:
        path: of the socket; the caller holds its lock.

    Raises:
        ConfigError: INVALID_CONFIG when something else lies there, which is left alone.
        OSError: it cannot be removed.
    """
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(
            ErrorCode.INVALID_CONFIG, f"{path} is there already and is no socket", path=path
        )
    _unlink(path)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
