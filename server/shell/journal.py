"""Lines for stderr and stdout, written by a thread of its own, so that no pipe stops the server.

Purpose: a pipe that nobody reads fills up after 64 KiB, and a write to it waits for ever; whoever
logs would wait with it, and every thread that logs next. Here lines wait in a bounded queue, and
those without room are counted instead. Must not know: what the lines say. Runs in: ``emit`` and
``write`` in any thread, the writing in its own.
"""

from __future__ import annotations

import logging
import os
import queue
import threading

MAX_LINES = 1000
MAX_CHARS = 8192
"""Of one record. A traceback of our own is shorter; what is cut may hold a peer's text."""

STDOUT, STDERR = 1, 2


class Journal(logging.Handler):
    """A log handler that never waits.

    Attributes:
        num_lost: lines that found no room.
    """

    def __init__(self, stderr: int = STDERR) -> None:
        """Starts the thread.

        Args:
            stderr: descriptor for log lines.
        """
        super().__init__()
        self.num_lost = 0
        self._stderr = stderr
        self._lines: queue.SimpleQueue[tuple[int, bytes] | threading.Event] = queue.SimpleQueue()
        # A daemon: one that waits for a reader must not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, name="kvkeep-journal", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues one log line."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a wrong argument of a log call harms nothing else
            line = f"a log line could not be formatted: {record.msg!r}"
        if len(line) > MAX_CHARS:
            line = f"{line[:MAX_CHARS]} ... ({len(line) - MAX_CHARS} characters left out)"
        self.write(self._stderr, line + "\n")

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
                _write(self._stderr, b"%d log lines were lost: nobody read them\n" % lost)
            error = _write(*item)
            if error is not None and item[0] != self._stderr:
                text = f"the start-up line could not be written: {error.strerror}\n"
                _write(self._stderr, text.encode())


def _write(fd: int, data: bytes) -> OSError | None:
    """Writes all of it, or as much as goes."""
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError as error:  # closed, or the reader is gone
        return error
    return None
