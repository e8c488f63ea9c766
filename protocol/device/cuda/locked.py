"""Where this process's page-locked ranges of host memory begin.

The driver takes a copy that lies in one range. Ranges that were locked one by one may touch, as
extents do that the kernel mapped side by side; copies that would cross from one into the other are
not joined (``batches.coalesce``).

Must not know: copies, calls. Any thread.
"""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
from numpy.typing import NDArray


class Locked:
    """The ranges of one device."""

    def __init__(self) -> None:
        """None yet."""
        self._lock = threading.Lock()
        self._counts: Counter[int] = Counter()
        self.begins: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        """int64[n], first bytes in order; replaced by another array, never written."""

    def add(self, address: int) -> None:
        """A range is about to be locked.

        Args:
            address: its first byte.
        """
        self._change(address, 1)

    def remove(self, address: int) -> None:
        """A range is locked no more, or was not after all; there may be a newer one by now."""
        self._change(address, -1)

    def _change(self, address: int, difference: int) -> None:
        with self._lock:
            self._counts[address] += difference
            if self._counts[address] <= 0:
                del self._counts[address]
            self.begins = np.array(sorted(self._counts), dtype=np.int64)
