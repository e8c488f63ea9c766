"""Which blocks a sliding attention window needs, and which have left it.

Must not know: requests, the host's classes, the server. Arithmetic; runs in the executor's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.geometry import Geometry


def first_needed(end_tokens: int, window_tokens: int, tokens_per_block: int) -> int:
    """The first block that reaches into the window before a position.

    Args:
        end_tokens: the position that is computed next.
        window_tokens: attention window; 0 for full attention.
        tokens_per_block: tokens of one block.
    """
    if not window_tokens:
        return 0
    return max(0, end_tokens - window_tokens) // tokens_per_block


def num_left(next_tokens: int, window_tokens: int, tokens_per_block: int) -> int:
    """Leading blocks whose pages the host may have taken back.

    A token sees itself within its window, so the page of a block goes one token earlier than
    ``first_needed`` leaves it out.

    Args:
        next_tokens: the position that is computed next, or a later one.
        window_tokens: attention window, not 0.
        tokens_per_block: tokens of one block.
    """
    return max(0, next_tokens - window_tokens + 1) // tokens_per_block


def loadable_stop(
    slots: NDArray[Any],
    windows: Sequence[int],
    first_block: int,
    stop_block: int,
    geometry: Geometry,
    is_divisible: bool,
) -> int:
    """How far a load may go with the slots there are.

    Args:
        slots: SLOT_DTYPE[num_chunks, num_shards] of the chunks that hold the blocks; zeros where
            the server does not hold a shard.
        windows: attention window of each shard; 0 for full attention.
        first_block: the first block to load; what lies before it is on the device.
        stop_block: behind the last.
        geometry: block and chunk sizes.
        is_divisible: whether the host may take any leading part of the offer (host contract §5, V2
            rule): then each part must be loadable too.

    Returns:
        The block behind the last that can be loaded; ``first_block`` when there is none.
    """
    absent = (slots["extent"] == 0) & (slots["generation"] == 0)
    if not absent.any():
        return stop_block
    size, chunk = geometry.tokens_per_block, geometry.chunk_blocks
    base = first_block // chunk
    stops = np.arange(first_block + 1, stop_block + 1)
    deepest = (stops - 1) // chunk - base
    is_good = np.ones(len(stops), dtype=np.bool_)
    for shard, window in enumerate(windows):
        numbered = np.where(absent[:, shard], np.arange(len(absent)), -1)
        last_absent = np.maximum.accumulate(numbered)[deepest]
        needed = np.full(len(stops), first_block)
        if window:
            needed = np.maximum(first_block, (stops * size - window) // size)
        is_good &= last_absent < needed // chunk - base
    if is_divisible:
        is_good = np.logical_and.accumulate(is_good)
    good = np.flatnonzero(is_good)
    return first_block if not good.size else int(stops[good[-1]])
