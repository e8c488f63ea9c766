"""The small client with its pool on a simulated device, shared by the handle of its allocation.

Needs ``KVKEEP_SIMULATED_CUDA`` in the environment of this process and of the server. Knows nothing
of ``server`` and ``adapter``. Runs in the pytest process or in a child of it.
"""

from __future__ import annotations

import numpy as np

from protocol.device.simulated import driver
from protocol.layout import CudaIpcMemory, Memory
from protocol.namespace import Namespace
from tests.wire.client import Engine

AHEAD_BYTES = 3 << 16
"""What lies in the allocation before the pool: an engine's allocator cuts pieces out of it."""


class DeviceEngine(Engine):
    """One rank whose pages are in device memory.

    Args:
        url: of the server.
        side_path: of its side socket.
        device: number of the simulated device.
        namespace: as for ``Engine``.
        num_pages: as for ``Engine``.
        seed: of the pages' first content.

    Attributes:
        pages: the very bytes; a real engine could not write them without the device.
        memory: what it registers; a test may change it to a lie.
    """

    def __init__(
        self,
        url: str,
        side_path: str,
        device: int = 0,
        namespace: Namespace | None = None,
        num_pages: int = 64,
        seed: int = 1,
    ) -> None:
        super().__init__(url, side_path, namespace, num_pages)
        found = driver.current()
        assert found is not None
        own = found.device(device)
        own.bind()
        size_bytes = num_pages * self.page_bytes
        made = found.allocation_at(own.malloc(AHEAD_BYTES + size_bytes))
        assert made is not None
        self._free = made.free
        self.pages = made.array[AHEAD_BYTES:].reshape(num_pages, self.page_bytes)
        self.refill(seed)
        exported = own.export(made.address)
        self.memory = CudaIpcMemory(
            handle=exported.handle,
            device_uuid=exported.device_uuid,
            base_offset_bytes=AHEAD_BYTES,
            size_bytes=size_bytes,
        )

    def refill(self, seed: int) -> None:
        """Other content, as the host makes it once pages are its own again."""
        rng = np.random.default_rng(seed)
        self.pages[:] = rng.integers(0, 256, self.pages.shape, dtype=np.uint8)

    def share(self) -> Memory:
        """What REGISTER_KV_CACHE says of the pool."""
        return self.memory

    def close(self) -> None:
        """Closes connections and frees the pool."""
        super().close()
        self._free()
