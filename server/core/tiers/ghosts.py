"""Which chunks were here once and were evicted, as far as a table of fixed size remembers.

Purpose: tell a miss that a larger arena, or a tier, would have been a hit from one of something
never seen. Must not know: who asks. Runs in: the loop thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES, Fingerprint

ENTRIES = 1 << 21
"""Of 4 bytes each: 8 MiB."""

_KEY_WORDS = np.dtype("<u8")


class Ghosts:
    """A direct-mapped table: a key's place is given by one half of it, a mark there by the other.

    A mark that another key overwrites is forgotten. Keys are digests, so their bits need no mixing.
    """

    def __init__(self) -> None:
        self._marks = np.zeros(ENTRIES, np.uint32)

    def note(self, fingerprint: Fingerprint, keys: NDArray[np.void]) -> None:
        """Chunks were evicted.

        Args:
            fingerprint: of their namespace.
            keys: V16[n].
        """
        words = keys.view(_KEY_WORDS).reshape(-1, 2) ^ np.frombuffer(fingerprint, _KEY_WORDS)
        places = (words[:, 0] & np.uint64(ENTRIES - 1)).astype(np.int64)
        self._marks[places] = (words[:, 1] | np.uint64(1)).astype(np.uint32)

    def has(self, fingerprint: Fingerprint, key: bytes) -> bool:
        """Whether a chunk was evicted at some time, as far as is remembered."""
        assert len(key) == ID_BYTES
        word = np.frombuffer(key, _KEY_WORDS) ^ np.frombuffer(fingerprint, _KEY_WORDS)
        mark = (int(word[1]) | 1) & 0xFFFFFFFF
        return int(self._marks[int(word[0]) & (ENTRIES - 1)]) == mark
