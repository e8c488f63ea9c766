"""Mapped extents that a simulated device reads, and pages in that device's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from adapter.pagememory import GroupPages, PagePart
from protocol.device.interface import DeviceError, MemoryKind
from protocol.device.simulated import driver as simulated
from protocol.device.simulated.device import SimulatedDevice
from protocol.device.simulated.driver import Allocation, Driver
from tests.adapter.arena import POOL_PAGES, UNTOUCHED, Arena


@contextmanager
def simulated_driver(
    folder: Path, monkeypatch: pytest.MonkeyPatch, delay_us: int = 200, seed: int = 0
) -> Iterator[Driver]:
    """Switches simulated devices on, in a folder of their own; the thread is bound to the first."""
    monkeypatch.setenv("KVKEEP_SIMULATED_CUDA", str(folder))
    monkeypatch.setenv("KVKEEP_SIMULATED_CUDA_DELAY_US", str(delay_us))
    monkeypatch.setenv("KVKEEP_SIMULATED_CUDA_SEED", str(seed))
    with simulated.ending(folder):
        driver = simulated.current()
        assert driver is not None
        driver.device(0).bind()
        yield driver


class DeviceArena(Arena):
    """As ``Arena``: its extents are page-locked for a device, and its pages are the device's."""

    def __init__(self, driver: Driver, chunk_blocks: int, *page_bytes: int) -> None:
        super().__init__(chunk_blocks, *page_bytes)
        self.driver = driver
        self.device: SimulatedDevice = driver.device(0)
        self.pins = []
        for number in self.files:
            extent = self.table.get(number, self.epoch)
            assert extent is not None
            self.pins.append(self.device.pin(extent.view.ctypes.data, extent.view.size))

    def memory(self, *parts: tuple[int, int], group: int = 0) -> GroupPages:
        size = self.page_bytes[group]
        made = []
        for part, stride in parts or ((size, size),):
            span = stride * (POOL_PAGES - 1) + part
            allocation = self.driver.allocate(span, 0, MemoryKind.DEVICE)
            allocation.array[:] = UNTOUCHED
            made.append(PagePart.on_device(allocation.address, span, part, stride))
        return GroupPages(tuple(made), POOL_PAGES)

    def part_bytes(self, part: PagePart) -> NDArray[np.uint8]:
        """The very bytes of a region: for looking at them once the device is done."""
        allocation: Allocation | None = self.driver.allocation_at(part.address)
        assert allocation is not None
        return allocation.array

    def content(self, memory: GroupPages) -> NDArray[np.uint8]:
        """uint8[pages, page_bytes], read part by part."""
        pages = []
        for page in range(memory.num_pages):
            found = [
                self.part_bytes(p)[p.stride_bytes * page :][: p.size_bytes] for p in memory.parts
            ]
            pages.append(np.concatenate(found))
        return np.stack(pages)

    def check_untouched(self, memory: GroupPages) -> None:
        for part in memory.parts:
            assert (self.part_bytes(part) == UNTOUCHED).all()

    def close(self) -> None:
        for pin in self.pins:
            with contextlib.suppress(DeviceError):  # of a device that was lost
                pin.close()
        super().close()
