"""The listening end of the side socket: lets in what can be watched, refuses the rest.

Purpose: a connection comes out of here with the pidfd of its process, or not at all. Must not
know: what peers say. Runs in: made in the main thread, then in the side socket's thread.
"""

from __future__ import annotations

import socket

from protocol import limits, side
from protocol.errors import ConfigError, ErrorCode, KvkeepError, RequestError
from server.shell import clock, packets
from server.shell.access import Access
from server.shell.complaints import Complaints
from server.shell.credentials import peer_ids, stand_in_of_peer, watch_peer
from server.shell.socketfile import SocketFile

MAX_PEERS = 1024
MAX_PER_PROCESS = 64
"""Of those, so that one process cannot take the places of all. An engine has one per ``LLM``."""

_PAUSE_NS = clock.NS_PER_S // 2
_BACKLOG = 128


class Door:
    """A bound, listening unix socket of packets.

    Args:
        path: of the socket; a stale socket there is removed, so the caller holds the lock.
        complaints: counts who is refused.
        access: who may connect; this user alone by default.

    Attributes:
        socket: to be watched for reading while ``closed_until_ns`` is 0.
        file: of the socket.
        closed_until_ns: end of a pause after descriptors ran out, or 0.
        pids: connections by process id, or by what stands in for one that cannot be seen.
    """

    def __init__(self, path: str, complaints: Complaints, access: Access | None = None) -> None:
        """Binds and listens.

        Raises:
            ConfigError: INVALID_CONFIG when the socket cannot be made, ENDPOINT_IN_USE when
                another program listens there.
        """
        self._complaints = complaints
        self._access = access or Access.own()
        self.file = SocketFile(path)
        self.closed_until_ns = 0
        self.pids: dict[int, int] = {}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.file.make_way()
            self.socket.bind(path)
            self.file.bound()
            self._access.share(path)  # before listen: nobody can have connected yet
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

    def admit(self, num_peers: int) -> tuple[socket.socket, int, int] | None:
        """Accepts one connection.

        Args:
            num_peers: processes that are watched already.

        Returns:
            Connection, pidfd and process id as in ``pids`` (counted until ``left``), or None:
            nobody there, refused, or out of descriptors, in which case ``closed_until_ns`` says
            how long not to look, since looking would spin.
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
            pid = peer_ids(connection)[0] or stand_in_of_peer(connection)
            if self.pids.get(pid, 0) >= MAX_PER_PROCESS and pid:
                raise RequestError(
                    ErrorCode.LIMIT_EXCEEDED,
                    f"process {pid if pid > 0 else 'of another pid namespace'} has "
                    f"{MAX_PER_PROCESS} side connections: more it may not have",
                )
            pidfd = watch_peer(connection, self._access)
            self.pids[pid] = self.pids.get(pid, 0) + 1
            return connection, pidfd, pid
        except RequestError as error:
            self._complaints.note("side_refused", str(error))
            try:
                packets.send(connection, error_packet(error), -1)
            except OSError:
                pass
            connection.close()
            return None

    def left(self, pid: int) -> None:
        """A connection that was admitted is not watched any more.

        Args:
            pid: as ``admit`` gave it.
        """
        self.pids[pid] -= 1
        if not self.pids[pid]:
            del self.pids[pid]

    def close(self) -> None:
        """Removes the socket's file, if it is still this one's, and stops listening."""
        self.file.remove()
        self.socket.close()


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
