"""What a KV cache looks like, whichever host version described it; and the V1 tensor read into it.

``CacheShape`` is the common description that the namespace is derived from; ``PageMemory`` is the
same cache as bytes. Must not know: the engine's arguments, sockets. Runs in: the main thread, at
pool registration.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adapter.devices import locate
from adapter.pagememory import Export, GroupPages, LayerSlice, PageMemory, PagePart
from adapter.pages import SharedPool, find_pool
from adapter.refusals import UncachedError
from protocol import limits
from protocol.device.interface import Device, DeviceError
from protocol.layout import Region

_CU_IS_MANAGED: Final = 8
_CU_DEVICE_ORDINAL: Final = 9
_CU_CONCURRENT_MANAGED_ACCESS: Final = 89


@dataclass(frozen=True)
class GroupShape:
    """One layer group.

    Attributes:
        layers: the model's layer numbers, in pool order.
        num_pages: page ids are 0 <= id < num_pages.
        page_bytes: bytes of one page on this rank.
        window_tokens: attention window, or 0 for full attention.
        is_replicated: whether every attention rank holds the same bytes.
    """

    layers: tuple[int, ...]
    num_pages: int
    page_bytes: int
    window_tokens: int = 0
    is_replicated: bool = False


@dataclass(frozen=True)
class CacheShape:
    """A whole cache on one rank.

    Attributes:
        groups: in the engine's order.
        dtype: name of the element type, e.g. ``bfloat16``; empty when the layout does not tell.
        kv_factor: 2, or 1 for a latent (MLA); 0 when the layout does not tell.
        layout: order of the axes in a page, for the namespace.
        tokens_per_block: as the layout tells, or 0: then it follows from ``block_elements``.
        block_elements: elements of one layer's K or V of one block, or 0 with the above.
        pools: for each group the number of the pool its pages are from; see ``Geometry``.
        has_scales: whether the layout shows each layer's scales as part of its pages.
    """

    groups: tuple[GroupShape, ...]
    dtype: str
    kv_factor: int
    layout: str
    tokens_per_block: int = 0
    block_elements: int = 0
    pools: tuple[int, ...] = ()
    has_scales: bool = False


@dataclass(frozen=True)
class PoolShape:
    """The V1 pool as its tensor describes it.

    Attributes:
        num_pages: rows.
        num_layers: layers in a row.
        kv_factor: 2, or 1 for MLA.
        elements: elements of one layer's K or V of one block.
        element_bytes: bytes of an element.
        dtype: name of the element type, e.g. ``bfloat16``.
        device: ``cpu``, ``cuda``, …
        address: of the first byte in this process.
    """

    num_pages: int
    num_layers: int
    kv_factor: int
    elements: int
    element_bytes: int
    dtype: str
    device: str
    address: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one row."""
        return self.num_layers * self.kv_factor * self.elements * self.element_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool."""
        return self.num_pages * self.page_bytes

    @classmethod
    def of(cls, tensor: Any) -> PoolShape:
        """Reads a tensor by duck typing; torch is not needed.

        Args:
            tensor: ``[num_blocks, num_layers, kv_factor, elements]``, contiguous.
                Source: host contract §7.

        Raises:
            UncachedError: another shape or other strides.
        """
        shape = tuple(int(extent) for extent in tensor.shape)
        if len(shape) != 4 or min(shape) < 1:
            raise UncachedError(f"the pool has shape {list(shape)}, four dimensions are understood")
        pages, layers, factor, elements = shape
        strides = tuple(int(value) for value in tensor.stride())
        if strides != (layers * factor * elements, factor * elements, elements, 1):
            raise UncachedError(f"the pool's strides {list(strides)} are not contiguous")
        if factor > 2 or layers > limits.MAX_LAYERS:
            raise UncachedError(f"the pool's shape {list(shape)} is no K and V, nor a latent")
        return cls(
            num_pages=pages,
            num_layers=layers,
            kv_factor=factor,
            elements=elements,
            element_bytes=int(tensor.element_size()),
            dtype=str(tensor.dtype).rpartition(".")[2],
            device=str(getattr(tensor.device, "type", tensor.device)),
            address=int(tensor.data_ptr()),
        )

    def as_cache(self) -> CacheShape:
        """The common description: one group of all layers."""
        group = GroupShape(
            layers=tuple(range(self.num_layers)),
            num_pages=self.num_pages,
            page_bytes=self.page_bytes,
        )
        return CacheShape(
            groups=(group,),
            dtype=self.dtype,
            kv_factor=self.kv_factor,
            layout=f"v1 kv{self.kv_factor} heads,tokens,dim",
            block_elements=self.elements,
        )


def read_tensor(tensor: Any) -> tuple[CacheShape, PageMemory]:
    """The V1 pool: its description and its bytes.

    Args:
        tensor: ``[num_blocks, num_layers, kv_factor, elements]``. Source: host contract §7.

    Returns:
        The description, and the memory, with its device, or as bytes that the server can map
        itself if it is a shared pool.

    Raises:
        UncachedError: a shape that is not understood, or memory that this process cannot reach.
    """
    shape = PoolShape.of(tensor)
    memory = memory_of(shape.address, shape.num_bytes, shape.device, tensor)
    export = None
    if memory.pool is not None:
        region = Region(
            offset_bytes=shape.address - memory.pool.address,
            size_bytes=shape.page_bytes,
            stride_bytes=shape.page_bytes,
        )
        export = Export(memory.pool.fd, memory.pool.num_bytes, ((region,),))
    part = memory.part(shape.page_bytes, shape.page_bytes)
    layer_bytes = shape.page_bytes // shape.num_layers
    layers = {
        layer: (LayerSlice(group=0, start_byte=layer * layer_bytes, num_bytes=layer_bytes),)
        for layer in range(shape.num_layers)
    }
    pages = GroupPages((part,), shape.num_pages)
    keep = (tensor, memory.pool)
    return shape.as_cache(), PageMemory(
        (pages,), export, memory.why_private, layers, keep, memory.device
    )


@dataclass(frozen=True)
class Span:
    """A run of memory in this process.

    Attributes:
        address: first byte.
        num_bytes: length.
        flat: uint8[num_bytes], writable; None for memory of a device.
        pool: the shared pool it lies in; None for private memory.
        why_private: why the server cannot map it, where that is known already; else empty.
        device: of device memory; None for host memory.
    """

    address: int
    num_bytes: int
    flat: NDArray[np.uint8] | None
    pool: SharedPool | None = None
    why_private: str = ""
    device: Device | None = None

    def part(self, size_bytes: int, stride_bytes: int) -> PagePart:
        """It as a region of pages.

        Args:
            size_bytes: of one page in it.
            stride_bytes: distance of pages.
        """
        if self.flat is not None:
            return PagePart(self.flat, size_bytes, stride_bytes)
        return PagePart.on_device(self.address, self.num_bytes, size_bytes, stride_bytes)


def memory_of(address: int, num_bytes: int, device: str, owner: object) -> Span:
    """Memory by its address: as bytes where this process may touch them, else on its device.

    Args:
        address: first byte.
        num_bytes: length.
        device: ``cpu``, ``cuda``, …; empty when nothing tells.
        owner: kept alive by the caller as long as the span is used; not looked at.

    Returns:
        The span; part of a shared pool where it lies in one.

    Raises:
        UncachedError: it is device memory, and the device cannot be reached.
    """
    pool = find_pool(address, num_bytes) if device in ("cpu", "") else None
    if pool is not None:
        start = address - pool.address
        return Span(address, num_bytes, pool.view[start : start + num_bytes], pool)
    found, problem = _on_device(address, num_bytes, device)
    if found is not None:
        return Span(address, num_bytes, None, device=found)
    # A tensor's word is taken: pinned host memory is a driver's file in the list of mappings.
    if device == "cpu" or (not device and is_host_mapped(address, num_bytes)):
        why = "the memory is no shared pool (adapter.pages.shared_pool makes one)"
    elif device in ("cuda", "") and is_managed(address):
        why = "managed memory cannot be shared with another process"
    else:
        raise UncachedError(
            f"this process cannot reach {device or 'device'} memory: "
            f"{problem or 'no device of it knows the address'} (docs/cuda.md)"
        )
    buffer = (ctypes.c_uint8 * num_bytes).from_address(address)
    return Span(address, num_bytes, np.ctypeslib.as_array(buffer), None, why)


def _on_device(address: int, num_bytes: int, device: str) -> tuple[Device | None, str]:
    """The device that memory is on, or why it could not be asked."""
    try:
        located = locate(address, device)
        if located is None and not device and not is_host_mapped(address, num_bytes):
            located = locate(address, "cuda")
    except (DeviceError, ImportError) as error:
        return None, str(error)
    return (None if located is None else located.device), ""


def is_host_mapped(address: int, num_bytes: int, maps: str = "/proc/self/maps") -> bool:
    """Whether a whole range is ordinary memory that this process may read and write.

    Args:
        address: first byte.
        num_bytes: length.
        maps: file that lists this process's mappings in ascending order.

    Returns:
        False for device memory, which is not mapped, reserved without access, or a driver's file.
    """
    end = address + num_bytes
    with Path(maps).open() as lines:
        for line in lines:
            bounds, mode, *rest = line.split(maxsplit=5)
            start, stop = (int(bound, 16) for bound in bounds.split("-"))
            if stop <= address:
                continue
            is_ours = start <= address and mode.startswith("rw")
            if not is_ours or (len(rest) > 3 and rest[3].startswith("/dev/nvidia")):
                return False
            address = stop
            if address >= end:
                return True
    return False


def is_managed(address: int, load: Callable[[str], Any] = ctypes.CDLL) -> bool:
    """Whether CUDA says that host code may touch this memory while kernels run.

    Args:
        address: within an allocation.
        load: opens a library by name.

    Returns:
        False also when there is no driver to ask.
    """
    try:
        driver = load("libcuda.so.1")
        value, ordinal = ctypes.c_int(0), ctypes.c_int(-1)
        where = ctypes.c_uint64(address)
        for result, attribute in ((value, _CU_IS_MANAGED), (ordinal, _CU_DEVICE_ORDINAL)):
            if driver.cuPointerGetAttribute(ctypes.byref(result), attribute, where) != 0:
                return False
        if not value.value or ordinal.value < 0:
            return False
        concurrent = ctypes.c_int(0)
        status = driver.cuDeviceGetAttribute(
            ctypes.byref(concurrent), _CU_CONCURRENT_MANAGED_ACCESS, ordinal
        )
    except (OSError, AttributeError):
        return False
    return status == 0 and concurrent.value == 1
