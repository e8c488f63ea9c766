"""Rows that tell a porter where values lie in the arena.

Must not know: which way they go. Runs in: the loop thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ExtentId
from server.core.arena import Arena
from server.core.slots import Slots
from server.core.tiers.parts import PART_DTYPE


def rows(
    arena: Arena,
    keys: NDArray[np.void],
    parents: NDArray[np.void],
    slots: Slots,
    heat: NDArray[np.integer[Any]] | int = 0,
) -> NDArray[Any]:
    """One row per slot.

    Args:
        arena: slots and extents.
        keys: V16[n], of the chunk of each slot.
        parents: V16[n], of the chunk before it, zeros at a chain's start.
        slots: int64[n], at least one.
        heat: int[n] or one for all, how often the chunk was used.

    Returns:
        PART_DTYPE[n].
    """
    table = arena.slots
    out = np.zeros(len(slots), PART_DTYPE)
    out["key"], out["parent"], out["heat"] = keys, parents, heat
    extents = table.extent[slots]
    out["extent"] = extents
    local = table.local[slots].astype(np.int64)
    for number in set(extents.tolist()):
        geometry = arena.extents[ExtentId(number)].geometry
        mine = extents == number
        out["offset"][mine] = geometry.data_offset_bytes + local[mine] * geometry.slot_bytes
        out["length"][mine] = geometry.payload_bytes
        out["room"][mine] = geometry.slot_bytes
        out["shard"][mine] = geometry.shard
    return out
