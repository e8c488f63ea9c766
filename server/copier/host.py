"""The copier for host memory: ``python -m server.copier.host FD PARENT_PID``.

Purpose: obeys the packets of ``server.copier.wire`` until their socket ends, one at a time; when
there is none, populates what is cold in short steps. Dies with the server, so that nothing of an
old server writes into an arena that the next one adopts. Must not know: the index, peers, leases.
Runs in: its own process, one thread, with numpy and the standard library only.
"""

from __future__ import annotations

import array
import ctypes
import os
import select
import signal
import socket
import sys

from server.copier.mappings import Mappings
from server.copier.wire import MAX_COMMAND_BYTES, Answer, Command, Kind, pack_answer, unpack_command

_PR_SET_PDEATHSIG = 1
_FD_SPACE = socket.CMSG_SPACE(array.array("i", [0]).itemsize)


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel for SIGKILL at the parent's end, and ends at once if that was before.

    Args:
        parent_pid: who started this process.

    Raises:
        SystemExit: the parent is gone already.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        raise SystemExit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        raise SystemExit("the server ended before its copier began")


def receive(channel: socket.socket) -> tuple[Command, int] | None:
    """The next command.

    Args:
        channel: blocking.

    Returns:
        Command and descriptor (-1 for none), or None when the server closed the socket.

    Raises:
        ValueError: not a packet of this version.
    """
    packet, ancillary, _, _ = channel.recvmsg(MAX_COMMAND_BYTES, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
    if not packet:
        return None
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return unpack_command(packet), fds[0] if fds else -1


class Copier:
    """Obeys commands; remembers only what a job in several packets needs."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._mappings = Mappings()
        self._failed: str | None = None

    def run(self) -> None:
        """Serves until the server closes the socket."""
        self._channel.send(pack_answer(Answer(Kind.READY, os.getpid(), None)))
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        while True:
            if self._mappings.is_cold and not poller.poll(0):
                self._mappings.populate_step()
                continue
            received = receive(self._channel)
            if received is None:
                return
            self._obey(*received)

    def _obey(self, command: Command, fd: int) -> None:
        try:
            error = self._perform(command, fd)
        except (ValueError, OSError) as caught:
            error = f"{type(caught).__name__}: {caught}"
        finally:
            if fd >= 0:
                os.close(fd)
        if command.kind == Kind.COPY:
            error = self._failed = self._failed or error
            if not command.last:
                return
            self._failed = None
        self._channel.send(pack_answer(Answer(command.kind, command.number, error)))

    def _perform(self, command: Command, fd: int) -> str | None:
        mappings, number = self._mappings, command.number
        if command.kind == Kind.COPY and command.parts is not None:
            mappings.copy(command.pool, command.extent, command.parts)
        elif command.kind == Kind.MAP_POOL:
            mappings.map_pool(number, fd, command.size_bytes)
        elif command.kind == Kind.MAP_EXTENT:
            mappings.map_extent(number, fd, command.size_bytes, command.offset_bytes)
        elif command.kind == Kind.UNMAP_POOL:
            mappings.unmap_pool(number)
        elif command.kind == Kind.UNMAP_EXTENT:
            mappings.unmap_extent(number)
        else:
            return f"command {command.kind} is not known"
        return None


def main(arguments: list[str]) -> None:
    """Runs the copier.

    Args:
        arguments: number of the inherited socket, process id of the parent.
    """
    fd, parent_pid = int(arguments[0]), int(arguments[1])
    die_with_parent(parent_pid)
    # The terminal's Ctrl-C reaches the whole group; the server ends its copiers itself, after
    # their last copy.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=fd) as channel:
        try:
            Copier(channel).run()
        except (BrokenPipeError, ConnectionResetError):
            return


if __name__ == "__main__":
    main(sys.argv[1:])
