"""One rank's loads into a simulated device's memory, with the engine's two streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from adapter import loader as loader_module
from adapter.deviceloads import DeviceLoads
from adapter.journal import Journal
from adapter.loader import Loader
from adapter.metadata import ConnectorMetadata, LoadOrder
from adapter.pagememory import GroupPages, LayerSlice, PageMemory
from protocol.device.interface import Device
from protocol.device.simulated.driver import Driver
from protocol.device.simulated.faults import Fault
from protocol.device.simulated.streams import SimulatedStream
from protocol.ids import LeaseId
from protocol.layout import SLOT_DTYPE
from tests.adapter.arena import EPOCH
from tests.adapter.devicearena import DeviceArena
from tests.adapter.hostlike import geometry

PAGE = 4096
LAYER = 1024
LAYERS = {layer: (LayerSlice(0, layer * LAYER, LAYER),) for layer in range(4)}
WAIT_S = 10.0


class Leases:
    """The link's part: extents, and what was given back."""

    def __init__(self, arena: DeviceArena) -> None:
        self.extents = arena.table
        self.given: list[bytes] = []

    def release(self, lease: LeaseId) -> None:
        self.given.append(lease)


class Hold:
    """A kernel that does not end before it is let."""

    def __init__(self, stream: SimulatedStream) -> None:
        self._go = threading.Event()
        stream.enqueue(lambda: self._go.wait(WAIT_S))

    def let_go(self) -> None:
        self._go.set()


class DeviceRig:
    """Streams M (``main``) and X (``forward``) as in host contract §5."""

    def __init__(self, driver: Driver, by_layer: bool = False, limit_s: float = WAIT_S) -> None:
        self.driver = driver
        self.arena = DeviceArena(driver, 1, PAGE)
        self.device = self.arena.device
        self.memory: GroupPages = self.arena.memory()
        self.pool: NDArray[np.uint8] = self.arena.part_bytes(self.memory.parts[0]).reshape(-1, PAGE)
        self.main = self.device.create_stream("M")
        self.forward = self.device.create_stream("X")
        self.loader = Loader(self.device.bind)
        self.leases = Leases(self.arena)
        self.journal = Journal(loader_module.LOGGER)
        device = cast(Device, self.device)
        memory = PageMemory((self.memory,), None, layers=LAYERS, device=device)
        geo = geometry(page_bytes=PAGE)
        self.loads = DeviceLoads(memory, geo, self.journal, self.loader, device, by_layer, limit_s)
        self.holds: list[Hold] = []

    def hold(self, stream: SimulatedStream | None = None) -> Hold:
        self.holds.append(Hold(stream or self.main))
        return self.holds[-1]

    def begin(self, *orders: LoadOrder, may_fire: bool = False, failure: str = "") -> None:
        metadata = ConnectorMetadata(1, loads=orders, may_fire=may_fire, failure=failure)
        self.loads.begin(metadata, self.leases, self.main)

    def launch(
        self, layers: range = range(0), kernel: Callable[[int], object] = lambda layer: None
    ) -> None:
        """A forward: X after M, a kernel for each layer, M after X."""
        self.forward.wait_stream(self.main)
        for layer in layers:
            self.loads.wait_for_layer(layer, self.forward)
            self.queue(self.forward, kernel, layer)
        self.main.wait_stream(self.forward)

    def end(self) -> None:
        """Of a forward and its iteration."""
        self.loads.launched()
        assert self.loads.take_arrived([]) == []

    def prove_hooks(self) -> None:
        """One forward that asks for each layer."""
        self.begin(may_fire=True)
        self.launch(range(4))
        self.end()

    def is_filled(self, page: int, place: tuple[int, int]) -> bool:
        return np.array_equal(self.pool[page], self.arena.page(*place, 0))

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end_s
            time.sleep(0.001)

    def settle(self) -> None:
        """The loader's thread ends all, without any hook."""
        self.until(lambda: self.loads.num_flying == 0)

    def queue(self, stream: SimulatedStream, kernel: Callable[[int], object], page: int) -> None:
        """A kernel that is given a page."""
        stream.enqueue(lambda: kernel(page))

    def plant(self, *faults: Fault) -> None:
        self.driver.faults.inject(*faults)

    def close(self) -> None:
        self.plant()
        for hold in self.holds:
            hold.let_go()
        self.loader.stop(WAIT_S)
        for stream in (self.main, self.forward):
            stream.close(WAIT_S)
        self.arena.close()


def order(lease: str, place: tuple[int, int], page: int, request_id: int = 0) -> LoadOrder:
    """Of one page; for a request outside the batch when its id is given."""
    extent, slot = place
    row = np.array([(extent, slot, slot + 1)], dtype=SLOT_DTYPE)
    pages = np.array([[[page]]], dtype=np.int32)
    return LoadOrder(
        key=1, request_id=request_id, lease=lease.encode(), epoch=EPOCH, slots=row.tobytes(),
        num_shards=1, pages=pages, is_async=bool(request_id),
    )  # fmt: skip


def seeds(count: int) -> pytest.MarkDecorator:
    """Delays and orders of the simulated device, drawn anew for each."""
    return pytest.mark.parametrize("seed", range(count))
