"""Ports on loopback for servers under test.

Runs in the pytest process.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A port that one who sets SO_REUSEADDR can listen at, as waitress does.

    It stays bound here, without listening: the kernel lets both have it, and gives it to nobody who
    connects, or asks for any port.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def free_port() -> int:
    """A port that nobody has now: another process may get it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
