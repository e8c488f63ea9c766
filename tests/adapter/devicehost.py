"""An engine on a simulated device: its pool in that memory, its forwards on streams.

As ``EngineRig``, but whatever touches pages is queued: what a recycled page is wiped with, what a
forward checks and fills. An assertion in it fails the stream, and so the next ``sample``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from protocol.device.interface import MemoryKind
from protocol.device.simulated.driver import Driver
from tests.adapter.enginerig import PAGE_SHAPE, SIZE, EngineRig, page_content
from tests.adapter.hostlike import Output
from tests.adapter.test_identity import FakeTensor

WAIT_S = 20.0


class DeviceEngineRig(EngineRig):
    """Streams M (``main``) and X (``forward``) as in host contract §5."""

    def __init__(
        self,
        url: str,
        model: Path,
        driver: Driver,
        kind: MemoryKind = MemoryKind.DEVICE,
        first_page: int = 0,
        num_pages: int = 64,
    ) -> None:
        super().__init__(url, model, num_pages)
        self.driver = driver
        self.device = driver.device(0)
        self.allocation = driver.allocate((num_pages + first_page) * self.page_bytes, 0, kind)
        bytes_ = self.allocation.array[first_page * self.page_bytes :]
        self.pages = bytes_.reshape(num_pages, self.page_bytes)
        self.tensor = FakeTensor(bytes_.view(np.float32).reshape(num_pages, *PAGE_SHAPE))
        self.main = self.stream = self.device.create_stream("M")  # type: ignore[assignment]
        self.forward = self.device.create_stream("X")

    def launch(self, worker: Any, forward: Callable[[], object] | None) -> None:
        self.forward.wait_stream(self.main)
        layers = range(self.num_layers) if self.fires_hooks else ()
        for layer in layers:
            self.timed("wait_for_layer", worker.wait_for_layer_load, layer, self.forward)
        if forward is not None:
            self.forward.enqueue(forward)
        for layer in layers:
            self.timed("save_layer", worker.save_kv_layer, layer, self.forward)
        self.main.wait_stream(self.forward)

    def iterate(self, output: Output, finished: tuple[int, ...] = (), **forward: Any) -> None:
        super().iterate(output, finished, **forward)
        self.sample()

    def sample(self) -> None:
        """The host waits for its samples: whatever failed on the device shows here."""
        self.main.synchronize(WAIT_S)

    def wipe(self, pages: list[int]) -> None:
        self.main.enqueue(lambda: super(DeviceEngineRig, self).wipe(pages))

    def expect(self, tokens: list[int], pages: list[int], stop: int) -> None:
        """Looks at pages behind everything queued."""
        self.sample()
        for block in range(stop):
            expected = page_content(tokens[: (block + 1) * SIZE], self.page_bytes)
            assert np.array_equal(self.pages[pages[block]], expected), block

    def close(self) -> None:
        super().close()
        for stream in (self.main, self.forward):
            stream.close(WAIT_S)
