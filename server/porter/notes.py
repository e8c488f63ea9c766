"""What a porter has to say for the server's log.

Purpose: a porter writes to no pipe that somebody might not read; its log lines go over its socket,
the latest few of them, no faster than the main thread sends them. Must not know: sockets. Runs in:
filled by any thread of a porter, emptied by its main thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

MAX_NOTES = 16
"""Kept until they are sent; older ones give way."""


class Notes(logging.Handler):
    """Takes warnings and worse.

    Attributes:
        wake: called after a note came.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: deque[str] = deque(maxlen=MAX_NOTES)
        self.wake: Callable[[], None] = lambda: None

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a line; a traceback is left out, since there may be credentials in it."""
        self._texts.append(" ".join(record.getMessage().split()))
        self.wake()

    def take(self) -> str | None:
        """The oldest that is left, or None."""
        try:
            return self._texts.popleft()
        except IndexError:
            return None

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._texts)
