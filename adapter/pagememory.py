"""The engine's KV memory as bytes: where each page of each layer group lies.

Loads write through it, the staging ring reads through it, and whether the server can reach the
memory itself is said by ``export``. A page is its parts in all regions of its group, concatenated
(as in ``protocol.layout.ShardPool``). Memory of a device has addresses only: nothing but work on a
stream of that device may touch it.

Must not know: requests, sockets, who copies. Built at registration; any thread may use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import Device
from protocol.layout import Region


@dataclass(frozen=True)
class PagePart:
    """One region: part i of the pages is ``size_bytes`` at ``address + stride_bytes * i``.

    Attributes:
        flat: the region's bytes, uint8[span_bytes], contiguous, writable; None for memory of a
            device, also for one whose memory this process could read.
        size_bytes: bytes of one page in this region.
        stride_bytes: distance of pages, at least ``size_bytes``.
        address: of the region's first byte in this process.
        span_bytes: ``stride_bytes * (num_pages - 1) + size_bytes``.
    """

    flat: NDArray[np.uint8] | None
    size_bytes: int
    stride_bytes: int
    address: int = 0
    span_bytes: int = 0

    def __post_init__(self) -> None:
        if self.flat is not None:
            object.__setattr__(self, "address", int(self.flat.ctypes.data))
            object.__setattr__(self, "span_bytes", int(self.flat.size))

    @classmethod
    def on_device(
        cls, address: int, span_bytes: int, size_bytes: int, stride_bytes: int
    ) -> PagePart:
        """A region of device memory; arguments as the attributes."""
        return cls(None, size_bytes, stride_bytes, address, span_bytes)

    @property
    def host(self) -> NDArray[np.uint8]:
        """The region's bytes, uint8[span_bytes].

        Raises:
            TypeError: it is memory of a device.
        """
        if self.flat is None:
            raise TypeError("memory of a device is reached by its stream's work only")
        return self.flat


@dataclass(frozen=True)
class LayerSlice:
    """Bytes of one model layer within a page.

    Attributes:
        group: layer group.
        start_byte: within the page (parts concatenated).
        num_bytes: length.
    """

    group: int
    start_byte: int
    num_bytes: int


@dataclass(frozen=True)
class Cut:
    """A run of bytes of a page that lies in one region.

    Attributes:
        part: index of the region.
        page_byte: first byte within the page (parts concatenated).
        part_byte: the same byte's place in the region's ``flat``, for page 0.
        stride: of the region.
        num_bytes: length.
    """

    part: int
    page_byte: int
    part_byte: int
    stride: int
    num_bytes: int


@dataclass(frozen=True)
class GroupPages:
    """The pages of one layer group.

    Attributes:
        parts: regions in order; one for a V1 pool.
        num_pages: pages.
    """

    parts: tuple[PagePart, ...]
    num_pages: int

    @classmethod
    def packed(cls, flat: NDArray[np.uint8], page_bytes: int) -> GroupPages:
        """Pages of one region without gaps, as in a V1 pool.

        Args:
            flat: uint8[num_pages * page_bytes], contiguous, writable.
            page_bytes: bytes of one page.
        """
        return cls((PagePart(flat, page_bytes, page_bytes),), flat.size // page_bytes)

    @cached_property
    def page_bytes(self) -> int:
        """Bytes of one page over all parts."""
        return sum(part.size_bytes for part in self.parts)

    @cached_property
    def whole(self) -> tuple[Cut, ...]:
        """A page's bytes, region by region."""
        return self.cuts(0, self.page_bytes)

    def cuts(self, start_byte: int, num_bytes: int) -> tuple[Cut, ...]:
        """Where a run of a page's bytes lies.

        Args:
            start_byte: within the page (parts concatenated).
            num_bytes: length; ``start_byte + num_bytes <= page_bytes``.

        Returns:
            Its pieces in order, one per region that it touches.
        """
        cuts, begin = [], 0
        for index, part in enumerate(self.parts):
            first = max(start_byte, begin)
            stop = min(start_byte + num_bytes, begin + part.size_bytes)
            if first < stop:
                cuts.append(Cut(index, first, first - begin, part.stride_bytes, stop - first))
            begin += part.size_bytes
        return tuple(cuts)


@dataclass(frozen=True)
class Export:
    """How the server may map this memory itself, read-only.

    Attributes:
        fd: sealed memfd; not the caller's to close.
        num_bytes: its length.
        regions: of each group, relative to the memfd's beginning.
    """

    fd: int
    num_bytes: int
    regions: tuple[tuple[Region, ...], ...]


@dataclass(frozen=True)
class PageMemory:
    """All pages of one rank.

    Attributes:
        groups: in the engine's order.
        export: None when the memory cannot be shared: saves go through the staging ring.
        why_private: why not, for the log; empty with an export.
        layers: where each model layer lies; empty when the layout does not tell, in which case
            nothing is done by layer.
        keep: what owns the memory, kept alive with this object.
        device: of device memory, all of which is on one; None for host memory.
    """

    groups: tuple[GroupPages, ...]
    export: Export | None
    why_private: str = ""
    layers: Mapping[int, tuple[LayerSlice, ...]] = field(default_factory=dict)
    keep: object = None
    device: Device | None = None

    @cached_property
    def is_layered(self) -> bool:
        """Whether the layers make up every byte of every page, so that work by layer is whole."""
        covered = [0] * len(self.groups)
        for slices in self.layers.values():
            for piece in slices:
                covered[piece.group] += piece.num_bytes
        return covered == [group.page_bytes for group in self.groups]
