"""Messages between the processes of one job: a length, then pickled bytes, on a unix socket.

A closed socket is how the end of a process is noticed, so it is an error of its own. Must not
know: what is said. Any thread, one at a time per direction.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from typing import Any, Final

from adapter.conformance.host.errors import HostError

MAX_MESSAGE_BYTES: Final = 1 << 30
_LENGTH: Final = struct.Struct("<Q")
_SLICE_S: Final = 60.0


class RankLostError(HostError):
    """The process at the other end is gone: the job is dead."""


class RankSilentError(HostError):
    """The process at the other end did not answer within its limit."""


class Wire:
    """One end of a socket between two processes.

    Args:
        sock: A connected stream socket; the wire owns it.
        peer: Names the other end in messages of errors.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._sock = sock

    @classmethod
    def from_fd(cls, fd: int, peer: str) -> Wire:
        """Take over a descriptor that was inherited."""
        return cls(socket.socket(fileno=fd), peer)

    def send(self, value: Any, limit_s: float) -> None:
        """Send a value, pickled.

        Args:
            value: Anything that can be pickled.
            limit_s: Longest wait in seconds for room.

        Raises:
            RankLostError: If the other end is closed.
            RankSilentError: If it does not read.
        """
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        self.send_bytes(_LENGTH.pack(len(data)) + data, limit_s)

    def receive(self, limit_s: float | None) -> Any:
        """Receive a value.

        Args:
            limit_s: Longest wait in seconds; None waits for as long as the other process lives.

        Raises:
            RankLostError: If the other end is closed.
            RankSilentError: If nothing came in time.
        """
        (length,) = _LENGTH.unpack(self.receive_bytes(_LENGTH.size, limit_s))
        if length > MAX_MESSAGE_BYTES:
            raise HostError(f"a message of {length} bytes from {self.peer}")
        return pickle.loads(self.receive_bytes(length, limit_s))

    def send_bytes(self, data: bytes | memoryview, limit_s: float) -> None:
        """Send raw bytes; see ``send``."""
        try:
            self._sock.settimeout(limit_s)
            self._sock.sendall(data)
        except TimeoutError:
            raise RankSilentError(f"{self.peer} did not read for {limit_s} s") from None
        except OSError as error:
            raise RankLostError(f"{self.peer} is gone: {error}") from None

    def receive_bytes(self, num_bytes: int, limit_s: float | None) -> bytearray:
        """Receive exactly so many raw bytes; see ``receive``."""
        data = bytearray(num_bytes)
        view, deadline_s = memoryview(data), time.monotonic() + (limit_s or 0.0)
        while view:
            left_s = _SLICE_S if limit_s is None else deadline_s - time.monotonic()
            try:
                self._sock.settimeout(max(left_s, 0.001))
                count = self._sock.recv_into(view)
            except TimeoutError:
                if limit_s is None:
                    continue
                raise RankSilentError(f"{self.peer} said nothing for {limit_s} s") from None
            except OSError as error:
                raise RankLostError(f"{self.peer} is gone: {error}") from None
            if count == 0:
                raise RankLostError(f"{self.peer} is gone")
            view = view[count:]
        return data

    def fileno(self) -> int:
        """The descriptor, for a process that inherits it."""
        return self._sock.fileno()

    def end_sending(self) -> None:
        """Tell the other end that nothing more comes; what it says is still heard. Idempotent."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is gone, or this end was closed

    def release(self) -> None:
        """Give up this process's hold alone: the connection lives on where it is shared."""
        self._sock.close()

    def close(self) -> None:
        """Close; whoever waits at either end is told. Idempotent."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end was faster
        self._sock.close()


def pair(one: str, other: str) -> tuple[Wire, Wire]:
    """Two connected ends.

    Args:
        one: Name of whoever holds the first.
        other: Name of whoever holds the second.

    Returns:
        The first one's end and the second one's.
    """
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Wire(left, other), Wire(right, one)
