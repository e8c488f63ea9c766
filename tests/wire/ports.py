"""A port on loopback for a server under test, which nobody else gets meanwhile.

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
