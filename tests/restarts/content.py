"""Keys and bytes that follow from each other: what a slot must hold is known from its key alone.

A chunk's page begins with its key, so that a slot tells whose bytes it has whatever its record
says, and every further word mixes both halves of the key. Knows nothing of servers. Pure functions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

CHAIN_CHUNKS: Final = 128
"""Chunks of one chain, which one STORE saves."""

MAIN: Final = 0
"""The space that holds most; further ones are guests that come and go."""

PAGE_BYTES: Final = 4096
GUEST_PAGE_BYTES: Final = 8192

LOG_DTYPE: Final = np.dtype([("chain", "<u8"), ("space", "<u4"), ("count", "<u4")])
"""One answered COMMIT: so many leading chunks of a chain are held."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_MORE = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)


def page_bytes(space: int) -> int:
    """Bytes of a page of a space."""
    return PAGE_BYTES if space == MAIN else GUEST_PAGE_BYTES


def model(space: int) -> str:
    """The model that tells a space's namespace from others."""
    return "restarts/main" if space == MAIN else f"restarts/guest-{space}"


def _mixed(words: Words) -> Words:
    words = (words ^ (words >> _SHIFT)) * _MIX
    words = (words ^ (words >> _SHIFT)) * _MORE
    result: Words = words ^ (words >> _SHIFT)
    return result


def keys_of(space: int, chain: int, count: int) -> Words:
    """Keys of the leading chunks of a chain.

    Args:
        space: which.
        chain: its number.
        count: chunks.

    Returns:
        uint64[count, 2]; a key is the 16 bytes of a row.
    """
    first = _mixed(np.array([chain], np.uint64) * _MIX + np.uint64(space))
    keys = np.empty((count, 2), np.uint64)
    keys[:, 0] = first
    keys[:, 1] = _mixed(first + np.arange(1, count + 1, dtype=np.uint64) * _MIX)
    return keys


def as_bytes(keys: Words) -> list[bytes]:
    """Keys as the wire has them."""
    blob = keys.tobytes()
    return [blob[at : at + 16] for at in range(0, len(blob), 16)]


def pages(keys: Words, num_bytes: int) -> Words:
    """What the pages of chunks hold.

    Args:
        keys: uint64[n, 2].
        num_bytes: of a page, a multiple of 16.

    Returns:
        uint64[n, num_bytes / 8].
    """
    odd = np.arange(1, num_bytes // 8 + 1, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    found: Words = keys[:, :1] * odd
    found ^= keys[:, 1:] + odd * _MIX
    found[:, :2] = keys
    return found


def num_wrong(found: NDArray[np.uint8], keys: Words) -> int:
    """Pages that do not hold what their keys say.

    Args:
        found: uint8[n, page_bytes].
        keys: uint64[n, 2].
    """
    words = np.ascontiguousarray(found).view(np.uint64)
    return int((words != pages(keys, found.shape[1])).any(axis=1).sum())
