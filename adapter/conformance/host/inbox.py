"""What clients ask the executor for, in order, until it closes.

Must not know: what a command does. Any thread puts; the executor's takes.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import Union

from adapter.conformance.host.requests import HostRequest

Command = Union[HostRequest, int, "Future[int]", None]
"""A request to run, the id of one to cancel, a wish for an empty reuse tree (answered
with the pages given up), or None: stop."""


class Inbox:
    """A queue that refuses what nobody will take any more."""

    def __init__(self) -> None:
        """Start empty and open."""
        self._items: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._num_ends = 0

    @property
    def wants_end(self) -> bool:
        """Whether a stop or a cancel is queued."""
        return self._num_ends > 0

    def put(self, command: Command) -> bool:
        """Queue a command.

        Returns:
            False if the executor is gone; the command was not queued.
        """
        with self._gate:
            if not self._closed:
                self._items.put(command)
                self._num_ends += _is_end(command)
            return not self._closed

    def take(self, timeout_s: float | None) -> list[Command]:
        """Take everything queued, waiting for the first command if there is none.

        Args:
            timeout_s: Longest wait in seconds; None waits for ever.

        Returns:
            Commands in order; empty if none came in time.
        """
        taken: list[Command] = []
        try:
            taken.append(self._items.get(timeout_s is None or timeout_s > 0, timeout_s))
            while True:
                taken.append(self._items.get_nowait())
        except queue.Empty:
            with self._gate:
                self._num_ends -= sum(map(_is_end, taken))
            return taken

    def close(self) -> list[Command]:
        """Refuse from now on.

        Returns:
            What was still queued.
        """
        with self._gate:
            self._closed = True
        return self.take(0)


def _is_end(command: Command) -> bool:
    return command is None or isinstance(command, int)
