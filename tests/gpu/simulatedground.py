"""The simulated device as a ground: ``KVKEEP_SIMULATED_CUDA`` must name its folder.

Shows that the steps themselves are right; measures nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from protocol.device.interface import DeviceError, MemoryKind
from protocol.device.simulated import driver
from protocol.device.simulated.device import SimulatedDevice
from tests.gpu.ground import Way


@dataclass
class SimulatedMemory:
    """Memory of a simulated device."""

    device: SimulatedDevice
    address: int

    def close(self) -> None:
        """Frees it."""
        self.device.free(self.address)


class SimulatedGround:
    """See ``ground.Ground``."""

    name = "simulated"
    tensor_device = "cpu"

    def __init__(self) -> None:
        found = driver.current()
        if found is None:
            raise DeviceError("cudaErrorNoDevice", "KVKEEP_SIMULATED_CUDA names no folder")
        self.device: Any = found.device(0)
        self.device.bind()

    def attributes(self) -> dict[str, int | str]:
        return {}

    def main_stream(self) -> Any:
        return self.device.create_stream("M")

    def stream(self) -> Any:
        return self.device.create_stream("X")

    def allocate(self, kind: MemoryKind, num_bytes: int) -> SimulatedMemory:
        return SimulatedMemory(self.device, self.device.malloc(num_bytes, kind))

    def delay(self, stream: Any, delay_s: float) -> None:
        stream.enqueue(lambda: time.sleep(delay_s))

    def multiply(self, stream: Any) -> None:
        stream.enqueue(lambda: time.sleep(0.001))

    def tick(self, stream: Any) -> None:
        stream.enqueue(lambda: None)

    def synchronize(self) -> None:
        """Nobody watches here."""

    def by(self, way: Way | None) -> None:
        """There is one way here."""
