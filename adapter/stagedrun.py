"""Chunks of one request and layer group that were copied into the staging ring layer by layer.

Must not know: marks, sockets, how bytes are copied. Belongs to the save book and its lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adapter.ring import Lot


@dataclass(eq=False)
class StagedRun:
    """Chunks that one forward completes.

    Attributes:
        key: our number of the request.
        first_chunk: ordinal of the first.
        num_chunks: how many; fewer once a report counts fewer as computed.
        pages: int32[num_chunks * chunk_blocks], their pages in the pool.
        lot: ring slots, one per page.
        bind: number of the bind that named them.
        seen_s: when the saver's thread first saw it, on the monotonic clock; below 0 before.
        is_vouched: whether a later report, or the request's end, counts them as computed.
        is_complete: whether every layer of them is in the ring.
        is_dropped: nobody will use it; its slots go once nothing is copied into them.
        is_copying: whether the saver's thread is writing into its slots.
    """

    key: int
    first_chunk: int
    num_chunks: int
    pages: NDArray[np.int32]
    lot: Lot
    bind: int
    seen_s: float = -1.0
    is_vouched: bool = False
    is_complete: bool = False
    is_dropped: bool = False
    is_copying: bool = False

    @property
    def stop_chunk(self) -> int:
        """Ordinal behind the last."""
        return self.first_chunk + self.num_chunks

    def vouch(self, valid_chunks: int) -> bool:
        """The first word about its request since: what it does not count was not computed.

        Args:
            valid_chunks: chunks counted as computed.

        Returns:
            Whether anything is left.
        """
        if not self.is_vouched:
            self.is_vouched = True
            self.num_chunks = max(0, min(self.num_chunks, valid_chunks - self.first_chunk))
        return self.num_chunks > 0
