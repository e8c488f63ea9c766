"""A porter's end of its socket.

Must not know: what commands do. Runs in: a porter's main thread.
"""

from __future__ import annotations

import socket

from server.copier.channel import receive_packet
from server.porter.wire import MAX_COMMAND_BYTES, Answer, Command, pack_answer, unpack_command


def receive(channel: socket.socket) -> tuple[Command, int] | None:
    """The next command.

    Args:
        channel: blocking.

    Returns:
        Command and descriptor (-1 for none), or None when the server closed the socket.

    Raises:
        ValueError: not a packet of this version.
    """
    packet, fd = receive_packet(channel, MAX_COMMAND_BYTES)
    return (unpack_command(packet), fd) if packet else None


def send(channel: socket.socket, answer: Answer) -> None:
    """Answers a command; the server reads answers at once, so this does not wait for long.

    Args:
        channel: blocking.
        answer: cut to what a packet holds.

    Raises:
        BrokenPipeError: the server closed the socket.
    """
    channel.send(pack_answer(answer))
