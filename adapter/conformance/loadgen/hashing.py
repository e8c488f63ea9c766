"""List to int32 and hashing alone: the floor under a lookup from a prompt never seen before.

Purpose: the shortest Python that derives the keys of docs/protocol.md from a list, written apart
from the adapter's own chain so that the two can be held against each other. Must not know: servers.
Runs in: the load generator's main thread.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256


def keys_of(tokens: Sequence[int], tokens_per_block: int, seed: bytes) -> bytes:
    """Keys of a prompt.

    Args:
        tokens: whole blocks.
        tokens_per_block: tokens in one block.
        seed: 32 bytes, from the reuse scope.

    Returns:
        16 bytes per block.
    """
    packed = struct.pack(f"<{len(tokens)}i", *tokens)
    step, state, digests = 4 * tokens_per_block, seed, []
    for at in range(0, len(packed), step):
        state = sha256(state + packed[at : at + step]).digest()
        digests.append(state[:16])
    return b"".join(digests)
