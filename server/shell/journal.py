"""Lines for stderr and stdout, written by a thread of its own, so that no pipe stops the server.

Purpose: a pipe that nobody reads fills up after 64 KiB, and a write to it waits for ever; whoever
logs would wait with it, and every thread that logs next. Here lines wait in a bounded queue, and
those without room are counted instead. Of one kind of line only so many a minute are written, if a
throttle is given. Must not know: what the lines say. Runs in: ``emit`` and ``write`` in any thread,
the writing in its own.
"""

from __future__ import annotations

import logging
import os
import queue
import threading

from protocol.logline import About, JsonFormatter, Throttle, about_of, extra

MAX_LINES = 1000
MAX_CHARS = 8192
"""Of one record. A traceback of our own is shorter; what is cut may hold a peer's text."""

STDOUT, STDERR = 1, 2

_OWN = About("journal")


class Journal(logging.Handler):
    """A log handler that never waits.

    Attributes:
        num_lost: lines that found no room.
    """

    def __init__(self, stderr: int = STDERR, throttle: Throttle | None = None) -> None:
        """Starts the thread.

        Args:
            stderr: descriptor for log lines.
            throttle: bounds lines of one event; None for no bound but that of the queue.
        """
        super().__init__()
        self._throttle = throttle
        self.num_lost = 0
        self._stderr = stderr
        self._lines: queue.SimpleQueue[tuple[int, bytes] | threading.Event] = queue.SimpleQueue()
        # A daemon: one that waits for a reader must not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, name="kvkeep-journal", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues one log line, unless too many of its kind came before."""
        if self._throttle is not None and not self._is_admitted(record, self._throttle):
            return
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a wrong argument of a log call harms nothing else
            line = self._own_line(f"a log line could not be formatted: {record.msg!r}")
        # A line of JSON would be none any more; its formatter bounds the texts in it.
        if len(line) > MAX_CHARS and not isinstance(self.formatter, JsonFormatter):
            line = f"{line[:MAX_CHARS]} ... ({len(line) - MAX_CHARS} characters left out)"
        self.write(self._stderr, line + "\n")

    def _is_admitted(self, record: logging.LogRecord, throttle: Throttle) -> bool:
        """Also says what was left out of events of which no more came."""
        self._tell_left_out(throttle, record.created)
        about = about_of(record)
        left_out = throttle.admit(about.event, record.created)
        if left_out > 0:
            record.__dict__ |= extra(about._replace(left_out=about.left_out + left_out))
        return left_out >= 0

    def _tell_left_out(self, throttle: Throttle, now_s: float) -> None:
        for event, count in throttle.take_overdue(now_s):
            text = f"{event or 'others'}: {count} more such lines were left out"
            line = self._own_line(text, About(event or "others", left_out=count))
            self.write(self._stderr, line + "\n")

    def _own_line(self, text: str, about: About = _OWN) -> str:
        """A line of the log's own making."""
        record = logging.LogRecord("kvkeep.server", logging.WARNING, "", 0, "%s", (text,), None)
        record.__dict__ |= extra(about)
        return self.format(record)

    def write(self, fd: int, text: str) -> None:
        """Queues text, or counts it as lost.

        Args:
            fd: where to.
            text: whole lines.
        """
        if self._lines.qsize() >= MAX_LINES:
            self.num_lost += 1
            return
        self._lines.put((fd, text.encode("utf-8", "backslashreplace")))

    def finish(self, timeout_s: float) -> bool:
        """Waits until what was queued so far is written.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether it was.
        """
        if self._throttle is not None:
            self.acquire()
            try:
                self._tell_left_out(self._throttle, float("inf"))
            finally:
                self.release()
        done = threading.Event()
        self._lines.put(done)
        return done.wait(timeout_s)

    def _run(self) -> None:
        num_told = 0
        while True:
            item = self._lines.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            if self.num_lost > num_told:
                lost, num_told = self.num_lost - num_told, self.num_lost
                self._write_own(f"{lost} log lines were lost: nobody read them")
            error = _write(*item)
            if error is not None and item[0] != self._stderr:
                self._write_own(f"the start-up line could not be written: {error.strerror}")

    def _write_own(self, text: str) -> None:
        line = self._own_line(text)
        _write(self._stderr, line.encode("utf-8", "backslashreplace") + b"\n")


def _write(fd: int, data: bytes) -> OSError | None:
    """Writes all of it, or as much as goes."""
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError as error:  # closed, or the reader is gone
        return error
    return None
