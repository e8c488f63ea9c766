"""The copier for host memory: ``python -m server.copier.host FD PARENT_PID``.

Purpose: obeys the packets of ``server.copier.wire`` until their socket ends, one at a time; when
there is none, populates what is cold in short steps. Dies with the server, so that nothing of an
old server writes into an arena that the next one adopts. Must not know: the index, peers, leases.
Runs in: its own process, one thread, with numpy and the standard library only.
"""

from __future__ import annotations

import os
import select
import socket
import sys

from server.copier.channel import begin, receive, send
from server.copier.mappings import Mappings
from server.copier.wire import Answer, Command, Kind


class Copier:
    """Obeys commands; remembers only what a job in several packets needs."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._mappings = Mappings()
        self._failed: str | None = None

    def run(self) -> None:
        """Serves until the server closes the socket."""
        send(self._channel, Answer(Kind.READY, os.getpid(), None))
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
        send(self._channel, Answer(command.kind, command.number, error))

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
    begin(parent_pid)
    with socket.socket(fileno=fd) as channel:
        try:
            Copier(channel).run()
        except (BrokenPipeError, ConnectionResetError):
            return


if __name__ == "__main__":
    main(sys.argv[1:])
