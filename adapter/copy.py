"""Loads: from mapped extents into the engine's pool, page by page, checked afterwards.

The reader copies from its own mapping, so a load needs no server (design rule 2). When the copy
has ended, every slot must still carry the generation that RETRIEVE named: leases and quarantine
guarantee that, and this check is the tripwire.

Must not know: sockets, requests, streams (the caller ordered the copy after the engine's work).
Runs in: the thread that calls it; numpy copies without holding the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.extents import ExtentTable, MappedExtent
from protocol.errors import ErrorCode, KvkeepError
from protocol.ids import Epoch


class LoadError(KvkeepError):
    """Pages were not filled with what was promised; nothing may be computed on them."""


def load_pages(
    table: ExtentTable,
    epoch: Epoch,
    slots: NDArray[Any],
    pool: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    page_bytes: int,
) -> int:
    """Copies chunks of one shard into the pool.

    Args:
        table: this process's mapped extents.
        epoch: ``Joined.epoch`` at the time of the RETRIEVE.
        slots: SLOT_DTYPE[n], one per chunk: this rank's column of the RETRIEVE reply.
        pool: uint8[pool_bytes], writable.
        offsets: int64[n, chunk_blocks], where in ``pool`` each page of each chunk goes, in bytes;
            -1 for a page that is not wanted.
        page_bytes: bytes of one page.

    Returns:
        Bytes copied.

    Raises:
        LoadError: an extent is not mapped, a descriptor or an offset is out of range (nothing was
            written then), or a slot was changed while it was copied.
    """
    raise NotImplementedError
