"""The shared pool: KV memory that another process may map read-only.

A pool is a memfd, mapped writable here once and then sealed: it can neither
shrink nor grow, and no later mapping of it can be writable. So the server that
receives its descriptor can read pages, cannot be hit by SIGBUS (fault P13) and
cannot write. The host passes on only a tensor; the adapter recognises the pool
by the tensor's address.

Must not know: sockets, the protocol, the host. Any thread may call it. torch is
imported only by ``shared_pool``.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

# Numbers from <linux/fcntl.h>; older Pythons name none or only some of them.
F_ADD_SEALS: Final = 1033
F_GET_SEALS: Final = 1034
F_SEAL_SEAL: Final = 0x01
F_SEAL_SHRINK: Final = 0x02
F_SEAL_GROW: Final = 0x04
F_SEAL_FUTURE_WRITE: Final = 0x10
POOL_SEALS: Final = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL
_MADV_POPULATE_WRITE: Final = 23


class _Mapping(mmap.mmap):
    """The writable mapping; alive exactly as long as some view of it is."""

    fd: int
    address: int
    num_bytes: int


class _Registry:
    """Live mappings by address, weakly: an unmapped pool is no longer found.

    The one process-wide object of this module. A host hands over a bare tensor,
    so nothing but its address can lead back to the descriptor.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mappings: weakref.WeakValueDictionary[int, _Mapping] = weakref.WeakValueDictionary()

    def add(self, mapping: _Mapping) -> None:
        with self._lock:
            self._mappings[mapping.address] = mapping

    def find(self, address: int, num_bytes: int) -> _Mapping | None:
        with self._lock:
            mappings = list(self._mappings.values())
        for mapping in mappings:
            end = mapping.address + mapping.num_bytes
            if mapping.address <= address and address + num_bytes <= end:
                return mapping
        return None


_REGISTRY: Final = _Registry()


class SharedPool:
    """A handle on one sealed shared pool.

    The memory lives as long as any handle, array or tensor over it; the
    descriptor is closed with it. Handles are cheap and may be several.

    Attributes:
        fd: The memfd; sealed, to be passed to the server. Not the caller's to close.
        address: First byte's address in this process.
        num_bytes: Size of the pool in bytes.
    """

    def __init__(self, mapping: _Mapping) -> None:
        """Wrap a mapping; use ``create`` or ``find_pool`` instead."""
        self._mapping: _Mapping | None = mapping
        self.fd = mapping.fd
        self.address = mapping.address
        self.num_bytes = mapping.num_bytes

    @classmethod
    def create(cls, num_bytes: int, *, populate: bool = False) -> SharedPool:
        """Allocate, map and seal a pool.

        Args:
            num_bytes: Size in bytes, positive.
            populate: Whether to back every page with memory now.

        Returns:
            A handle on the zero-filled pool.

        Raises:
            ValueError: If ``num_bytes`` is not positive.
            OSError: If memory, memfds or these seals (Linux 5.1) are not to be had.
        """
        if num_bytes <= 0:
            raise ValueError(f"a pool needs a positive size in bytes, got {num_bytes}")
        fd = os.memfd_create("kvkeep-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, num_bytes)
            mapping = _Mapping(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            fcntl.fcntl(fd, F_ADD_SEALS, POOL_SEALS)
        except BaseException:
            os.close(fd)
            raise
        mapping.fd = fd
        mapping.num_bytes = num_bytes
        mapping.address = int(np.frombuffer(mapping, dtype=np.uint8).ctypes.data)
        weakref.finalize(mapping, os.close, fd).atexit = False
        _REGISTRY.add(mapping)
        if populate:
            _populate(mapping)
        return cls(mapping)

    @property
    def view(self) -> npt.NDArray[np.uint8]:
        """The pool's bytes, ``uint8[num_bytes]``, writable.

        Raises:
            ValueError: After ``close``.
        """
        return np.frombuffer(self.mapping, dtype=np.uint8)

    @property
    def mapping(self) -> _Mapping:
        """The buffer object; whoever holds it (or a view of it) keeps the pool.

        Raises:
            ValueError: After ``close``.
        """
        if self._mapping is None:
            raise ValueError("this pool handle was closed")
        return self._mapping

    def close(self) -> None:
        """Give up this handle; memory and descriptor go with the last view. Idempotent."""
        self._mapping = None


def find_pool(address: int, num_bytes: int) -> SharedPool | None:
    """Recognise memory as part of a live shared pool of this process.

    Args:
        address: First byte's address, e.g. ``tensor.data_ptr()``.
        num_bytes: Bytes from there that must lie inside the pool.

    Returns:
        A handle that keeps the pool alive, or None if no live pool holds the
        whole range. The range's offset is ``address - pool.address``.
    """
    if num_bytes <= 0:
        return None
    mapping = _REGISTRY.find(address, num_bytes)
    return None if mapping is None else SharedPool(mapping)


def shared_pool(shape: Sequence[int], dtype: torch.dtype, *, populate: bool = False) -> Any:
    """Allocate a KV pool that the server can map, as a tensor.

    Args:
        shape: Pool shape, e.g. ``[num_blocks, num_layers, kv_factor, elements]``.
        dtype: Element type; any torch type of a whole number of bytes.
        populate: Whether to back every page with memory now.

    Returns:
        A zero-filled CPU ``torch.Tensor`` of that shape. It owns the pool: the
        pool lives until the last tensor over it is gone.

    Raises:
        ValueError: If the shape holds no element.
        OSError: If the memory is not to be had.
    """
    import torch

    num_elements = math.prod(int(extent) for extent in shape)
    num_bytes = num_elements * torch.empty((), dtype=dtype).element_size()
    pool = SharedPool.create(num_bytes, populate=populate)
    flat = torch.frombuffer(pool.mapping, dtype=torch.uint8)
    return flat.view(dtype).view(*(int(extent) for extent in shape))


def _populate(mapping: _Mapping) -> None:
    # Through ctypes, which drops the GIL; mmap.madvise would hold it for seconds.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if libc.madvise(mapping.address, mapping.num_bytes, _MADV_POPULATE_WRITE) != 0:
        # Kernels before 5.14: touching one byte per page does the same, slower.
        np.frombuffer(mapping, dtype=np.uint8)[:: mmap.PAGESIZE] = 0
