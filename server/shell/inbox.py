"""Commands from the loop to a thread that waits in a selector: a deque and an eventfd.

Purpose: the loop hands work over without blocking. Must not know: what the commands are. Runs
in: ``put`` in any thread, ``take_all`` in the one that waits on ``fd``.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Many writers, one reader.

    Attributes:
        fd: readable while something may be waiting.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._items: deque[T] = deque()

    def put(self, item: T) -> None:
        """Hands one item over and wakes the reader."""
        self._items.append(item)
        os.eventfd_write(self.fd, 1)

    def take_all(self) -> list[T]:
        """Everything handed over so far, oldest first.

        Returns:
            Perhaps nothing; a later ``put`` makes ``fd`` readable again in any case.
        """
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
        items: list[T] = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def close(self) -> None:
        """Closes the eventfd; no thread uses it any more."""
        os.close(self.fd)
