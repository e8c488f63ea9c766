"""Records of published slots.

Purpose: turn what a COMMIT publishes into rows of the extent files' record format. Must not know:
files, plans, leases. Runs in: the loop thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.extents import RECORD_DTYPE, STATE_HELD, checksums
from protocol.ids import ID_BYTES, Fingerprint, InstanceId


def build(
    keys: bytes,
    parent: bytes,
    fingerprint: Fingerprint,
    shard: int,
    chunk_blocks: int,
    payload_bytes: int,
    owner: InstanceId,
    stamp_us: int,
    first_generation: int,
    tenant: bytes = b"",
) -> NDArray[Any]:
    """Records for consecutive chunks of one chain.

    Args:
        keys: 16 bytes per chunk.
        parent: key before the first, or empty at the chain's start.
        fingerprint: of the namespace; its first 8 bytes are recorded.
        shard: which shard the slots hold.
        chunk_blocks: blocks per chunk.
        payload_bytes: used bytes of a slot.
        owner: the engine that stored them.
        stamp_us: when, on the server's monotonic clock, microseconds.
        first_generation: of the first chunk; the others follow.
        tenant: digest of the salt of the request that stored them, or empty.

    Returns:
        RECORD_DTYPE[n], checksums included.
    """
    rows = np.zeros(len(keys) // ID_BYTES, dtype=RECORD_DTYPE)
    rows["key"] = np.frombuffer(keys, dtype="V16")
    before = (parent or bytes(ID_BYTES)) + keys[:-ID_BYTES]
    rows["parent"] = np.frombuffer(before, dtype="V16")
    rows["namespace"] = np.void(fingerprint[:8])
    rows["shard"] = shard
    rows["chunk_blocks"] = chunk_blocks
    rows["state"] = STATE_HELD
    rows["payload_bytes"] = payload_bytes
    rows["generation"] = np.arange(first_generation, first_generation + len(rows), dtype=np.uint64)
    rows["owner"] = np.void(owner)
    if tenant:
        rows["tenant"] = np.void(tenant)
    rows["stamp"] = stamp_us * 1000  # nanoseconds in the file (docs/protocol.md)
    rows["checksum"] = checksums(rows)
    return rows
