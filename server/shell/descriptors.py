"""File descriptors with an owner count, so that a number is never used after it was closed.

Purpose: an extent's descriptor is queued for several readers and a copier at once, and the file
may go meanwhile; a bare number could then name another file by the time it is sent. Must not
know: what the file is. Runs in: any thread.
"""

from __future__ import annotations

import os
import threading


class Descriptor:
    """One open descriptor; whoever borrows it gives it back, the last one closes it.

    Attributes:
        fd: the number, valid between borrow and give back.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._owners = 1
        self._lock = threading.Lock()

    def borrow(self) -> Descriptor:
        """Adds an owner.

        Returns:
            Itself.

        Raises:
            ValueError: it is closed already.
        """
        with self._lock:
            if self._owners == 0:
                raise ValueError("the descriptor is closed already")
            self._owners += 1
        return self

    def give_back(self) -> None:
        """Ends one ownership and closes the descriptor with the last one.

        Raises:
            ValueError: it is closed already.
        """
        with self._lock:
            if self._owners == 0:
                raise ValueError("the descriptor is closed already")
            self._owners -= 1
            is_last = self._owners == 0
        if is_last:
            os.close(self.fd)

    def is_open(self) -> bool:
        """Whether somebody owns it."""
        return self._owners > 0
