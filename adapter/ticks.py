"""When each page of a layer group was last handed out.

Purpose: the second look of design rule 1: a copy whose pages changed hands since they were named
is withdrawn, whatever the reports say. Must not know: requests, sockets. Written by the
executor's thread, read by the saver's; both hold the save book's lock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class PageTicks:
    """One counter per page."""

    def __init__(self, num_pages: int) -> None:
        """All pages start at 0.

        Args:
            num_pages: pages of the pool.
        """
        self._ticks = np.zeros(num_pages, dtype=np.int64)
        self._now = 0

    @property
    def num_pages(self) -> int:
        """Pages of the pool."""
        return int(self._ticks.size)

    def raise_for(self, pages: NDArray[np.int32]) -> None:
        """Notes that pages were handed out.

        Args:
            pages: int32[n]; ids outside the pool are an error of the host.

        Raises:
            IndexError: an id outside the pool.
        """
        self._now += 1
        if pages.size:
            if int(pages.min()) < 0 or int(pages.max()) >= self._ticks.size:
                raise IndexError(f"page ids must lie within 0..{self._ticks.size - 1}")
            self._ticks[pages] = self._now

    def of(self, pages: NDArray[np.int32]) -> NDArray[np.int64]:
        """The ticks of pages now.

        Args:
            pages: int32[n], within the pool; below 0 for no page.

        Returns:
            int64[n], a copy; -1 for no page, which no page's tick ever equals.

        Raises:
            IndexError: an id behind the pool.
        """
        found: NDArray[np.int64] = self._ticks[np.maximum(pages, 0)]
        found[pages < 0] = -1
        return found

    def num_unchanged(self, pages: NDArray[np.int32], seen: NDArray[np.int64]) -> int:
        """Leading pages that were not handed out since.

        Args:
            pages: int32[n], within the pool.
            seen: int64[n], from ``of``.

        Returns:
            0..n.
        """
        changed = np.flatnonzero(self._ticks[pages] != seen)
        return int(changed[0]) if changed.size else int(pages.size)
