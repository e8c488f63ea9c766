"""Drops this process's connections to the server, as a network or a proxy would.

Finds them by the address of their other end among the process's own descriptors: no object that
holds one is asked. Must not know: the adapter, ZMQ. Runs in an engine's process.
"""

from __future__ import annotations

import os
import socket


def drop(path: str) -> int:
    """Shuts every unix stream or packet connection to a path, in both directions.

    Args:
        path: of the listening socket.

    Returns:
        How many there were.
    """
    count = 0
    for name in os.listdir("/proc/self/fd"):
        connection = _socket_of(int(name))
        if connection is None:
            continue
        with connection:
            try:
                if connection.getpeername() in (path, path.encode()):
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
            except OSError:
                continue  # not connected
    return count


def _socket_of(fd: int) -> socket.socket | None:
    """A duplicate; the owner's descriptor stays as it is, and so do its flags."""
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
            return None
        return socket.socket(fileno=os.dup(fd))
    except OSError:
        return None
