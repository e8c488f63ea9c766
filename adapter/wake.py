"""A way to end another thread's poll from any thread.

Must not know: who waits for what. Any thread may set it; one thread polls and clears it.
"""

from __future__ import annotations

import os


class Wake:
    """One eventfd. It is closed when the last reference to the object is gone."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor, readable from ``set`` to ``clear``."""
        return self._fd

    def set(self) -> None:
        """Ends the current poll, or the next one."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Takes back every ``set`` so far."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)
