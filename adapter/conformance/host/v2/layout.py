"""A V2 cache as a connector is told of it, and the memory behind it.

Layers of one attention window make up a layer group with page ids of its own; a page is one
slot in each of the group's regions (host contract §7). Regions may lie anywhere in the span,
with gaps between slots.

Must not know: requests, streams. Built on the main thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from adapter.conformance.host.forward import ForwardModel, LayerPages
from adapter.conformance.host.hardware import Hardware, HostHardware
from adapter.conformance.host.memory import GroupBytes, KvMemory
from adapter.conformance.host.options import Regions

BAD_PAGE_INDEX: Final = -1
RegionStyle = Regions
"""``joined``: one region per group, slots back to back. ``apart``: K and V (or two halves of
the layers, for a latent) in regions of their own that begin inside the span, with gaps."""

_ROLES: Final = ("key", "value")
_FIRST_BYTE: Final = 4096
_GAP_BYTES: Final = 192
_ALIGNMENT: Final = 256


class BufferId(NamedTuple):
    """One layer's K or V within a slot; buffers of a region are equally large."""

    layer_id: int
    role: str
    expansion: int = 1


@dataclass(frozen=True)
class Region:
    """Equally large slots at equal distances.

    Attributes:
        base: Address of slot 0.
        size: Bytes of a slot.
        stride: Bytes from one slot to the next, at least ``size``.
        num_slots: Slots; slot i belongs to page i of the group.
        buffers: What lies in a slot, in order.
        rows: ``uint8[num_slots, size]``, strided; it keeps the memory.
    """

    base: int
    size: int
    stride: int
    num_slots: int
    buffers: tuple[BufferId, ...]
    rows: Tensor

    def address_of(self, slot: int) -> int:
        """Address of a slot; -1 is not caught, as on the real host."""
        return self.base + self.stride * slot

    def as_tensor(self, dtype: torch.dtype) -> Tensor:
        """All slots as ``[num_slots, size / itemsize]``, strided."""
        return self.rows.view(dtype)

    def slot_tensor(self, slot: int) -> Tensor:
        """One slot as ``uint8[size]``."""
        return self.rows[slot]


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share page ids.

    Attributes:
        layer_group_id: Its place in all per-group lists.
        layer_ids: Model layers.
        window_size: Attention window in tokens, None for full attention.
        regions: Where its pages lie.
    """

    layer_group_id: int
    layer_ids: tuple[int, ...]
    window_size: int | None
    regions: tuple[Region, ...]

    def valid_page_slots(self, page_ids: Sequence[int]) -> list[int]:
        """The page ids that are pages."""
        return [page for page in page_ids if page != BAD_PAGE_INDEX]


@dataclass(frozen=True)
class KvCacheLayout:
    """The whole cache of one rank.

    Attributes:
        tokens_per_block: Tokens of a page.
        groups: Layer groups by id.
        dtype: Element type.
        kv_factor: 2, or 1 for a latent.
    """

    tokens_per_block: int
    groups: tuple[LayerGroup, ...]
    dtype: torch.dtype
    kv_factor: int

    def as_single_pool_tensor(self) -> Tensor:
        """The cache as a V1 pool, ``[num_slots, num_layers, kv_factor, elements]``.

        Raises:
            ValueError: If no single tensor describes it.
        """
        regions = [region for group in self.groups for region in group.regions]
        if len(regions) != 1 or regions[0].size != regions[0].stride:
            raise ValueError("the cache has several groups or regions, or gaps between pages")
        (region,), (group,) = regions, self.groups
        shape = (region.num_slots, len(group.layer_ids), self.kv_factor, -1)
        return region.as_tensor(self.dtype).view(shape)


def group_layers(windows: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Sort layers into groups by window.

    Args:
        windows: Attention window of each layer in tokens, 0 for full attention.

    Returns:
        Window and layers of each group, full attention first.
    """
    return [
        (window, tuple(layer for layer, own in enumerate(windows) if own == window))
        for window in sorted(set(windows))
    ]


def v2_memory(
    model: ForwardModel,
    num_pages: int,
    tokens_per_block: int,
    *,
    private: bool,
    style: RegionStyle,
    hardware: Hardware | None = None,
) -> KvMemory:
    """Allocate a V2 cache.

    Args:
        model: Says shape, element type and windows.
        num_pages: Pages of each group.
        tokens_per_block: Tokens of a page.
        private: Whether no other process can map it.
        style: How regions lie.
        hardware: Has the memory; None is the host's.
    """
    shape = model.pool_shape(1)
    dtype: torch.dtype = getattr(torch, shape.dtype_name)
    _, _, kv_factor, elements = shape.shape
    buffer_bytes = elements * dtype.itemsize
    grouped = group_layers(model.windows)
    plans = [_regions(layers, kv_factor, style) for _, layers in grouped]
    offset = 0 if style == "joined" else _FIRST_BYTE
    places: list[list[tuple[int, int, int]]] = []
    for plan in plans:
        places.append([])
        for buffers in plan:
            size = len(buffers) * buffer_bytes
            stride = size if style == "joined" else _aligned(size + _GAP_BYTES)
            places[-1].append((offset, size, stride))
            offset = _aligned(offset + stride * num_pages)
    flat = (hardware or HostHardware()).allocate(offset, private=private, is_virtual=True)
    groups = tuple(
        LayerGroup(
            group_id,
            layers,
            window or None,
            tuple(
                Region(flat.data_ptr() + begin, size, stride, num_pages, buffers, rows)
                for buffers, (begin, size, stride) in zip(plan, place, strict=True)
                for rows in (flat.as_strided((num_pages, size), (stride, 1), begin),)
            ),
        )
        for group_id, ((window, layers), plan, place) in enumerate(
            zip(grouped, plans, places, strict=True)
        )
    )
    layout = KvCacheLayout(tokens_per_block, groups, dtype, kv_factor)
    regions = tuple(GroupBytes(tuple(region.rows for region in group.regions)) for group in groups)
    return KvMemory(_layers(layout, model.num_layers), regions, layout)


def _regions(
    layers: tuple[int, ...], kv_factor: int, style: RegionStyle
) -> list[tuple[BufferId, ...]]:
    roles = _ROLES[:kv_factor]
    if style == "joined":
        return [tuple(BufferId(*pair) for pair in itertools.product(layers, roles))]
    if kv_factor == 2:
        return [tuple(BufferId(layer, role) for layer in layers) for role in roles]
    half = (len(layers) + 1) // 2
    parts = [part for part in (layers[:half], layers[half:]) if part]
    return [tuple(BufferId(layer, "key") for layer in part) for part in parts]


def _layers(layout: KvCacheLayout, num_layers: int) -> tuple[LayerPages, ...]:
    found: dict[BufferId, tuple[int, Tensor]] = {}
    for group, region in _all_regions(layout):
        size = region.size // len(region.buffers)
        for at, buffer in enumerate(region.buffers):
            rows = region.rows[:, at * size : (at + 1) * size].view(layout.dtype)
            found[buffer] = (group.layer_group_id, rows)
    roles = _ROLES[: layout.kv_factor]
    return tuple(
        LayerPages(parts[0][0], tuple(rows for _, rows in parts))
        for layer in range(num_layers)
        for parts in ([found[BufferId(layer, role)] for role in roles],)
    )


def _all_regions(layout: KvCacheLayout) -> Iterator[tuple[LayerGroup, Region]]:
    for group in layout.groups:
        for region in group.regions:
            yield group, region


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
