"""Memory as CUDA hands it out: opened, page-locked and own, each to be given back once.

Giving back what is our own never raises: it happens on the way out, where a driver that failed has
been noticed already, and a process that ends gives everything back anyway. It is logged. Another
process's memory that cannot be given back does raise: whoever was told that it is closed may free
it, and the next allocation with that handle must not meet the old mapping.

Must not know: pages, streams. Any thread that has bound the device.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.device.cuda.driver import Driver
from protocol.device.cuda.locked import Locked
from protocol.device.interface import HANDLE_BYTES, DeviceError

_log = logging.getLogger(__name__)

Within = Callable[[], AbstractContextManager[None]]
"""Makes a device the calling thread's for a while, and then what it had before."""


class _Held:
    """Something to be given back once.

    Args:
        within: makes the device the thread's meanwhile, since any thread may come to the end.
        give_back: does it.
        what: it is, for the log.
    """

    def __init__(self, within: Within, give_back: Callable[[], None], what: str) -> None:
        self._within = within
        self._give_back: Callable[[], None] | None = give_back
        self._what = what

    def close(self) -> None:
        """Gives it back. Idempotent. On any thread."""
        give_back, self._give_back = self._give_back, None
        if give_back is None:
            return
        try:
            with self._within():
                give_back()
        except DeviceError as error:
            self._failed(error)

    def _failed(self, error: DeviceError) -> None:
        _log.warning("%s was not given back: %s", self._what, error)


class CudaPinned(_Held):
    """Host memory that is page-locked while this is open.

    Args:
        driver: of this process.
        within: see ``Within``.
        address: first byte.
        num_bytes: length.
        is_read_only: the device was told never to write it.
        end: called after it was unlocked, also where that failed.
    """

    def __init__(
        self,
        driver: Driver,
        within: Within,
        address: int,
        num_bytes: int,
        is_read_only: bool,
        end: Callable[[], None],
    ) -> None:
        def unlock() -> None:
            try:
                driver.unlock(address)
            finally:
                end()

        super().__init__(within, unlock, f"a page lock of {num_bytes} bytes")
        self.is_read_only = is_read_only


class CudaPinnedBuffer(_Held):
    """Page-locked host memory of our own.

    Args:
        driver: of this process.
        within: see ``Within``.
        num_bytes: its length.
    """

    def __init__(self, driver: Driver, within: Within, num_bytes: int) -> None:
        self.address = address = driver.allocate_host(num_bytes)
        super().__init__(
            within, lambda: driver.free_host(address), f"page-locked {num_bytes} bytes"
        )
        bytes_ = (ctypes.c_uint8 * num_bytes).from_address(address)
        self.view: NDArray[np.uint8] = np.frombuffer(memoryview(bytes_), dtype=np.uint8)


class CudaBuffer(_Held):
    """Device memory of our own.

    Args:
        driver: of this process.
        within: see ``Within``.
        num_bytes: its length.
    """

    def __init__(self, driver: Driver, within: Within, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.address = address = driver.allocate(num_bytes)
        super().__init__(within, lambda: driver.free(address), f"{num_bytes} bytes of the device")


def lock(
    driver: Driver,
    within: Within,
    locked: Locked,
    address: int,
    num_bytes: int,
    has_read_only: bool,
) -> CudaPinned:
    """Page-locks host memory for reading, read-only where that works.

    Memory that is mapped read-only can be locked in no other way unless the device uses the host's
    page tables. Source: CUDA driver API, ``CU_MEMHOSTREGISTER_READ_ONLY``.

    Args:
        driver: of this process.
        within: see ``Within``.
        locked: is told of it.
        address: first byte.
        num_bytes: length.
        has_read_only: the device says that it can.
    """
    locked.add(address)
    try:
        is_read_only = _lock(driver, address, num_bytes, has_read_only)
    except BaseException:
        locked.remove(address)
        raise
    end = functools.partial(locked.remove, address)
    return CudaPinned(driver, within, address, num_bytes, is_read_only, end)


def _lock(driver: Driver, address: int, num_bytes: int, has_read_only: bool) -> bool:
    """Locks; whether read-only."""
    if has_read_only:
        try:
            driver.lock(address, num_bytes, is_read_only=True)
            return True
        except DeviceError as error:
            if error.code not in _READ_ONLY_REFUSED:
                raise
    driver.lock(address, num_bytes, is_read_only=False)
    return False


_READ_ONLY_REFUSED = ("cudaErrorNotSupported", "cudaErrorInvalidValue", "cudaErrorNotPermitted")


@dataclass
class _Opening:
    """An allocation that is open.

    Attributes:
        base: its first byte here.
        num_bytes: its length.
        num_users: who have it open.
    """

    base: int
    num_bytes: int
    num_users: int = 1


class CudaOpened(_Held):
    """One user's hold on another process's allocation.

    Args:
        opening: what is open.
        ordinal: of the device.
        within: see ``Within``.
        give_back: ends the hold.
    """

    def __init__(
        self, opening: _Opening, ordinal: int, within: Within, give_back: Callable[[], None]
    ) -> None:
        super().__init__(within, give_back, "another process's memory")
        self.base = opening.base
        self.num_bytes = opening.num_bytes
        self._ordinal = ordinal

    def _failed(self, error: DeviceError) -> None:
        raise error

    def as_array(self) -> Any:
        """Its bytes as an array of cupy's, uint8[num_bytes]; it keeps this object, not the hold.

        Raises:
            DeviceError: the hold was given back, or there is no cupy.
        """
        if self._give_back is None:
            raise DeviceError("cudaErrorInvalidResourceHandle", "memory that was given back")
        try:
            cupy = importlib.import_module("cupy")
        except ImportError as error:
            what = f"an array of the device: the package cupy is not installed ({error})"
            raise DeviceError("cudaErrorInitializationError", what) from error
        memory = cupy.cuda.UnownedMemory(self.base, self.num_bytes, self, self._ordinal)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        return cupy.ndarray((self.num_bytes,), dtype=np.uint8, memptr=pointer)


class Openings:
    """The allocations of other processes that are open, each once however many use it.

    Args:
        driver: of this process.
        within: see ``Within``.
        ordinal: of the device.
    """

    def __init__(self, driver: Driver, within: Within, ordinal: int) -> None:
        self._driver = driver
        self._within = within
        self._ordinal = ordinal
        self._lock = threading.Lock()
        self._by_handle: dict[bytes, _Opening] = {}

    def open(self, handle: bytes) -> CudaOpened:
        """One more hold on an allocation.

        Args:
            handle: 64 bytes.
        """
        if len(handle) != HANDLE_BYTES:
            raise DeviceError("cudaErrorInvalidValue", f"a handle of {len(handle)} bytes")
        with self._lock:
            opening = self._by_handle.get(handle)
            if opening is not None:
                opening.num_users += 1
            else:
                opening = self._map(handle)
                self._by_handle[handle] = opening
        end = functools.partial(self._give_back, handle, opening)
        return CudaOpened(opening, self._ordinal, self._within, end)

    def _map(self, handle: bytes) -> _Opening:
        base = self._driver.open(handle)
        try:
            first, num_bytes = self._driver.range_of(base)
        except DeviceError:
            self._driver.close(base)
            raise
        return _Opening(base, first + num_bytes - base)

    def _give_back(self, handle: bytes, opening: _Opening) -> None:
        with self._lock:
            opening.num_users -= 1
            if opening.num_users:
                return
            del self._by_handle[handle]
        # Outside the lock: closing what a dead process left can hang in the driver (fault P06),
        # and others go on opening. The driver counts too where they open this same one meanwhile.
        self._driver.close(opening.base)
