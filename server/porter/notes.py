"""What a porter has to say for the server's log.

Purpose: a porter writes to no pipe that somebody might not read; its log lines go over its socket,
the latest few of them, no faster than the main thread sends them. Must not know: sockets. Runs in:
filled by any thread of a porter, emptied by its main thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

_log = logging.getLogger("kvkeep.porter")

AGAIN_S, MOST_AGAIN_S = 60.0, 3600.0
"""After so long a warning that stays as it is is told again, each time after twice as long as
before, up to the second."""

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


class Warned:
    """What was last said of a tier that serves and may be of little use.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._text = ""
        self._again_s = self._pause_s = 0.0

    def tell(self, text: str) -> None:
        """Logs a warning that is new, or was told long ago.

        Args:
            text: as the tier says it now; empty for none.
        """
        now_s = self._clock()
        if text and text != self._text:
            self._pause_s = AGAIN_S / 2
            self._again_s = now_s
        if text and now_s >= self._again_s:
            _log.warning("%s", text)
            self._pause_s = min(2 * self._pause_s, MOST_AGAIN_S)
            self._again_s = now_s + self._pause_s
        self._text = text
