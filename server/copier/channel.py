"""A copier's end of its socket: what comes in, what goes out, and the end of its parent.

Purpose: shared by the copiers for host memory and for devices; in part by porters. Must not know:
what commands do. Runs in: a copier's main thread.
"""

from __future__ import annotations

import array
import ctypes
import os
import signal
import socket

from server import logsetup
from server.copier.wire import MAX_COMMAND_BYTES, Answer, Command, pack_answer, unpack_command

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
    packet, fd = receive_packet(channel, MAX_COMMAND_BYTES)
    return (unpack_command(packet), fd) if packet else None


def receive_packet(channel: socket.socket, max_bytes: int) -> tuple[bytes, int]:
    """The next packet and the descriptor that rides on it.

    Args:
        channel: blocking.
        max_bytes: longest packet there is.

    Returns:
        Packet, empty when the server closed the socket, and descriptor, -1 for none.
    """
    packet, ancillary, _, _ = channel.recvmsg(max_bytes, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return packet, fds[0] if fds else -1


def send(channel: socket.socket, answer: Answer) -> None:
    """Answers a command; the server reads answers at once, so this does not wait for long.

    Args:
        channel: blocking.
        answer: cut to what a packet holds.

    Raises:
        BrokenPipeError: the server closed the socket.
    """
    channel.send(pack_answer(answer))


def begin(parent_pid: int, process: str = "copier") -> None:
    """What every copier and porter does first.

    Args:
        parent_pid: who started this process.
        process: its name in log lines.

    Raises:
        SystemExit: the parent is gone already.
    """
    die_with_parent(parent_pid)
    logsetup.child(process)
    # The terminal's Ctrl-C reaches the whole group; the server ends its copiers itself, after
    # their last copy.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
