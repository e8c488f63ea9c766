"""The simulated CUDA of one process: its devices, its allocations, and what it opened of others.

Processes that share a folder share devices: memory is files there, mapped by each process that made
or opened it. Freed memory is filled with 0xEE at once. Addresses are real ones, so a test may look
into device memory (``Allocation.array``); code under test must not: only streams keep order.

Must not know: pages, slots, requests, sockets. Any thread; not usable in a fork of the process.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.device.interface import DeviceError, MemoryKind
from protocol.device.simulated import ledger, settings
from protocol.device.simulated.device import SimulatedDevice
from protocol.device.simulated.faults import Faults
from protocol.device.simulated.memory import Memory, Range

POISON = 0xEE


class Allocation:
    """Memory of a simulated device that this process made.

    Attributes:
        address: first byte.
        num_bytes: length.
        kind: how it was made.
        array: uint8[num_bytes], the very bytes; for tests and the host's forward work alone.
    """

    def __init__(self, driver: Driver, place: Range, holding: ledger.Holding) -> None:
        """Of a range that is known to the driver."""
        assert place.content is not None
        self.address = place.base
        self.num_bytes = place.num_bytes
        self.kind = place.kind
        self.device = place.owner
        self.array: NDArray[np.uint8] = place.content
        self.range = place
        self.holding = holding
        self._driver = driver

    def free(self) -> None:
        """Frees it: poisoned at once, for everybody who has it open. Idempotent."""
        self._driver.free(self)


class Driver:
    """One process's side of the folder.

    Args:
        how: see there.

    Attributes:
        bound_threads: names of threads that made a device theirs; for checks.
        unbound_calls: what threads that had not were refused; for checks.
    """

    def __init__(self, how: settings.Settings) -> None:
        self.settings = how
        self.folder = how.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.memory = Memory()
        self.faults = Faults(how.folder)
        self.bound = threading.local()
        self.bound_threads: set[str] = set()
        self.unbound_calls: list[str] = []
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a tensor that dies frees its memory anywhere
        self._streams = itertools.count()
        self._contexts: dict[int, ledger.Holding] = {}
        self._allocations: dict[bytes, Allocation] = {}
        self._opened: dict[tuple[int, bytes], tuple[Range, ledger.Holding, int]] = {}
        self._devices = {index: SimulatedDevice(self, index) for index in how.visible}

    def device(self, index: int) -> SimulatedDevice:
        """A device by its number.

        Raises:
            DeviceError: there is none of that number, or this process may not use it.
        """
        self.check_process()
        try:
            return self._devices[index]
        except KeyError:
            raise DeviceError("cudaErrorInvalidDevice", f"simulated device {index}") from None

    def devices(self) -> list[SimulatedDevice]:
        """All that this process may use, by number."""
        return [self._devices[index] for index in sorted(self._devices)]

    def check_process(self) -> None:
        """Refuses a fork of the process, as CUDA does."""
        if os.getpid() != self._pid:
            raise DeviceError("cudaErrorInitializationError", "simulated CUDA in a forked process")

    def enter(self, index: int) -> None:
        """Begins this process's context on a device, once."""
        with self._lock:
            if index not in self._contexts:
                self._contexts[index] = ledger.enter(self.folder, index)

    # --- memory of its own ---

    def allocate(self, num_bytes: int, device: int, kind: MemoryKind) -> Allocation:
        """Makes device memory, zeros. Whether so much is free is the device's to say."""
        holding = ledger.allocate(self.folder, device, num_bytes)
        place = _map(holding, kind, owner=device, seen_by=device)
        self.memory.add(place)
        made = Allocation(self, place, holding)
        with self._lock:
            self._allocations[holding.token] = made
        return made

    def free(self, made: Allocation) -> None:
        """See ``Allocation.free``."""
        with self._lock:
            if self._allocations.pop(made.holding.token, None) is None:
                return
        self.memory.remove(made.range)
        made.array[:] = POISON
        made.range.content = None
        made.holding.retire()

    def allocation_at(self, address: int) -> Allocation | None:
        """The allocation of this process that an address lies in."""
        place = self.memory.find(address)
        with self._lock:
            for made in list(self._allocations.values()):
                if made.range is place:
                    return made
        return None

    # --- memory of others ---

    def open(self, owner: int, token: bytes, seen_by: int) -> Range:
        """Opens another process's allocation; counted, and mapped once for each device.

        Raises:
            DeviceError: there is no such allocation, or it is this process's own.
        """
        what = "simulated open"
        with self._lock:
            if token in self._allocations:
                raise DeviceError("cudaErrorDeviceUninitialized", f"{what} of one's own memory")
            known = self._opened.get((seen_by, token))
            if known is not None:
                self._opened[seen_by, token] = (*known[:2], known[2] + 1)
                return known[0]
            holding = ledger.join(self.folder, owner, token)
            if holding is None:
                raise DeviceError("cudaErrorInvalidResourceHandle", f"{what}: no such allocation")
            place = _map(holding, MemoryKind.DEVICE, owner=owner, seen_by=seen_by)
            self.memory.add(place)
            self._opened[seen_by, token] = (place, holding, 1)
            return place

    def close_opened(self, token: bytes, seen_by: int) -> None:
        """Gives one opening back; the last one ends the mapping."""
        with self._lock:
            place, holding, count = self._opened.pop((seen_by, token))
            if count > 1:
                self._opened[seen_by, token] = (place, holding, count - 1)
                return
        self.memory.remove(place)
        place.content = None
        holding.release()

    def num_opened(self) -> int:
        """Allocations of others that are mapped here."""
        with self._lock:
            return len(self._opened)

    # --- for streams ---

    def next_rng(self) -> random.Random:
        """A source of delays for one stream, given by the seed and the streams made before."""
        return random.Random(f"{self.settings.seed}-{next(self._streams)}")

    def end(self) -> None:
        """Frees and closes all, as the end of the process does. For tests."""
        with self._lock:
            made, opened = list(self._allocations.values()), list(self._opened.values())
            self._opened = {}
        for device in self._devices.values():
            device.end()
        for allocation in made:
            allocation.free()
        for place, holding, _ in opened:
            self.memory.remove(place)
            holding.release()
        with self._lock:
            contexts, self._contexts = self._contexts, {}
        for context in contexts.values():
            context.release()


def _map(holding: ledger.Holding, kind: MemoryKind, owner: int, seen_by: int) -> Range:
    """The mapping ends when the last array over it does, so that nobody reads a hole."""
    content = np.frombuffer(mmap.mmap(holding.fd, holding.num_bytes), dtype=np.uint8)
    address = int(content.ctypes.data)
    return Range(address, holding.num_bytes, kind, owner, seen_by, True, content)


_drivers: dict[Path, Driver] = {}
_drivers_lock = threading.RLock()


def current() -> Driver | None:
    """The process's driver for the folder that the environment names; None where it names none."""
    name = os.environ.get(settings.FOLDER, "")
    if not name:
        return None
    with _drivers_lock:
        driver = _drivers.get(Path(name))
        if driver is None:
            how = settings.from_environment()
            assert how is not None
            driver = _drivers[how.folder] = Driver(how)
        return driver


@contextmanager
def ending(folder: Path) -> Iterator[None]:
    """Ends this process's driver of a folder afterwards, if there was one. For tests."""
    try:
        yield
    finally:
        with _drivers_lock:
            driver = _drivers.pop(folder, None)
        if driver is not None:
            driver.end()
