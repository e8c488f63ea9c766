"""How a copier's threads tell its main thread that there is something to collect.

Purpose: one descriptor that ``select`` can wait for beside the socket. Must not know: what there
is to collect. Runs in: set by any thread of a copier, waited for and cleared by its main thread.
"""

from __future__ import annotations

import os


class Wake:
    """A descriptor that is readable from ``set`` until ``clear``."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """For ``select``."""
        return self._fd

    def set(self) -> None:
        """Wakes the main thread, now or as soon as it waits."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Comes before collecting, so that what is set meanwhile wakes once more."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:  # nobody set it
            pass

    def close(self) -> None:
        """Closes the descriptor; no thread may set it any more."""
        os.close(self._fd)
