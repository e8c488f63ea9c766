"""The memory of all layers, as the model uses it, the host spoils it and a connector sees it.

V1 (host contract §7): one tensor ``[num_blocks, num_layers, kv_factor, elements]``. Memory is a
shared pool that a server can map, or private: what managed memory and granules without a handle
are to another process.

Must not know: streams, requests. Built on the main thread, used by stream threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adapter.conformance.host.forward import ForwardModel, LayerPages, v1_layers
from adapter.conformance.host.hardware import Hardware, HostHardware


@dataclass(frozen=True)
class GroupBytes:
    """The pages of one layer group as bytes.

    Attributes:
        regions: ``uint8[num_pages, size]`` each, possibly strided; row i is a part of page i.
    """

    regions: tuple[Tensor, ...]

    def fill(self, pages: Sequence[int], value: int) -> None:
        """Set every byte of some pages."""
        for region in self.regions:
            for page in pages:
                region[page].fill_(value)

    def copy(self, source: int, target: int) -> None:
        """Copy one page over another."""
        for region in self.regions:
            region[target].copy_(region[source])


@dataclass(frozen=True)
class KvMemory:
    """One rank's KV memory.

    Attributes:
        layers: Per model layer.
        groups: Per layer group.
        registered: What a connector is given: the pool tensor (V1) or the layout (V2).
    """

    layers: tuple[LayerPages, ...]
    groups: tuple[GroupBytes, ...]
    registered: Any


def v1_memory(
    model: ForwardModel, num_blocks: int, *, private: bool, hardware: Hardware | None = None
) -> KvMemory:
    """Allocate a V1 pool: one allocation.

    Args:
        model: Says shape and element type.
        num_blocks: Pages.
        private: Whether no other process can map it.
        hardware: Has the memory; None is the host's.
    """
    shape = model.pool_shape(num_blocks)
    dtype: torch.dtype = getattr(torch, shape.dtype_name)
    num_bytes = math.prod(shape.shape) * dtype.itemsize
    flat = (hardware or HostHardware()).allocate(num_bytes, private=private)
    pool = flat.view(dtype).view(shape.shape)
    pages = pool.view(torch.uint8).view(num_blocks, -1)
    return KvMemory(tuple(v1_layers(pool)), (GroupBytes((pages,)),), pool)
