"""Lines of JSON from an engine, where the operator asks for them.

As a rule the host decides where its log goes, and lines of ``kvkeep`` go with it. With
``KVKEEP_LOG_FORMAT=json`` they go to stderr by a handler of their own, as the server's do, each
event at a bounded rate. Must not know: what lines say. Any thread may log.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Final

from protocol.logline import About, JsonFormatter, Throttle, about_of, extra

NAME: Final = "kvkeep"
_LOCK: Final = threading.Lock()


class Lines(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes objects to stderr, of one event so many a minute."""

    def __init__(self) -> None:
        """Takes stderr as it is when a line is written, not as it is now."""
        super().__init__(sys.stderr)
        self._throttle = Throttle()
        self.setFormatter(JsonFormatter("adapter"))

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line, unless too many of its event came before."""
        for event, count in self._throttle.take_overdue(record.created):
            self._write(self._left_out(event, count))
        about = about_of(record)
        left_out = self._throttle.admit(about.event, record.created)
        if left_out < 0:
            return
        if left_out:
            record.__dict__ |= extra(about._replace(left_out=left_out))
        self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def _left_out(self, event: str, count: int) -> logging.LogRecord:
        text = f"{count} more such lines were left out"
        record = logging.LogRecord(NAME, logging.WARNING, "", 0, "%s", (text,), None)
        record.__dict__ |= extra(About(event or "others", left_out=count))
        return record


def set_up() -> None:
    """Has this process's lines of ``kvkeep`` be objects on stderr. Idempotent."""
    logger = logging.getLogger(NAME)
    with _LOCK:
        if not any(isinstance(handler, Lines) for handler in logger.handlers):
            logger.addHandler(Lines())
            logger.propagate = False
