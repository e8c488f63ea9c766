"""One ZMQ context per link, ended by whoever uses it last.

Ending a context waits for its sockets, and sockets belong to threads: so neither the link nor the
keeper nor a channel can end it for the others.

Must not know: sockets. Any thread may call it.
"""

from __future__ import annotations

import threading
from typing import Any

import zmq


class SharedContext:
    """A context and how many still use it.

    Attributes:
        context: for making sockets, by those who joined.
    """

    def __init__(self) -> None:
        """Begins with one user: the link."""
        self.context: zmq.Context[Any] = zmq.Context()
        self._lock = threading.Lock()
        self._num_users = 1

    def join(self) -> None:
        """One more user; its sockets are closed before it leaves."""
        with self._lock:
            self._num_users += 1

    def leave(self) -> None:
        """One user less; the last one ends the context."""
        with self._lock:
            self._num_users -= 1
            is_last = self._num_users == 0
        if is_last:
            self.context.term()
