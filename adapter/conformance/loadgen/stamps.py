"""Marks in pool pages, so that what comes back can be told from what was there before.

Purpose: a fast copy that copies nothing, or the wrong page, must not pass for a good figure. A page
carries one random word in each 16th part of it. Must not know: the server. Runs in: the load
generator's main thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PER_PAGE = 16
_WORD_BYTES = 8


@dataclass
class Stamps:
    """The marks of one pool.

    Attributes:
        words: uint64[num_pages, PER_PAGE], a view of the marked words in the pool.
        wanted: uint64[num_pages, PER_PAGE], what they shall be.
    """

    words: NDArray[np.uint64]
    wanted: NDArray[np.uint64]

    @classmethod
    def put(cls, pool: NDArray[np.uint8], page_bytes: int, random: np.random.Generator) -> Stamps:
        """Marks every page.

        Args:
            pool: uint8[num_pages * page_bytes], writable.
            page_bytes: a multiple of 128.
            random: source of the words.

        Returns:
            The marks.

        Raises:
            ValueError: pages too small or odd to be marked.
        """
        if page_bytes % (PER_PAGE * _WORD_BYTES):
            raise ValueError(f"pages of {page_bytes} bytes cannot carry {PER_PAGE} marks")
        pages = pool.view(np.uint64).reshape(-1, PER_PAGE, page_bytes // PER_PAGE // _WORD_BYTES)
        words = pages[:, :, 0]
        wanted = random.integers(1, 1 << 63, words.shape, dtype=np.uint64)
        stamps = cls(words, wanted)
        stamps.renew()
        return stamps

    def renew(self) -> None:
        """Writes the marks anew."""
        self.words[:] = self.wanted

    def wipe(self) -> None:
        """Takes the marks away, so that only a load can bring them back."""
        self.words[:] = 0

    def wrong(self, pages: NDArray[np.int32]) -> int:
        """Counts pages that do not carry their marks.

        Args:
            pages: int32[n], which to look at.

        Returns:
            How many are wrong.
        """
        return int((self.words[pages] != self.wanted[pages]).any(axis=1).sum())
