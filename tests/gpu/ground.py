"""What the GPU tests stand on: a device, memory of each kind, an engine's stream, and work for it.

The same steps run on a GPU (``cudaground``) and on the simulated device (``simulatedground``), so
that each is known to work before it meets a GPU. Must not know: servers, engines.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Any, Protocol

from protocol.device.interface import Device, DeviceError, MemoryKind, Stream

WAIT_S = 30.0
LARGE_BYTES = 12 << 30
NAMES = ("cuda", "simulated")


class Way(Enum):
    """How pieces of a batch are moved."""

    ENGINE = "copy engine"
    KERNEL = "kernel"


class Memory(Protocol):
    """Memory of the device."""

    @property
    def address(self) -> int:
        """Its first byte."""

    def close(self) -> None:
        """Frees it."""


class Ground(Protocol):
    """One device, as a host's process uses it."""

    @property
    def name(self) -> str:
        """One of ``NAMES``."""

    @property
    def device(self) -> Device:
        """Bound in the thread that made this."""

    @property
    def tensor_device(self) -> str:
        """What a tensor in its memory says of its device."""

    def attributes(self) -> dict[str, int | str]:
        """What the driver says of the device, as it says it."""

    def main_stream(self) -> Any:
        """The stream a host passes to hooks: has ``record_event`` and ``cuda_stream``.

        On a GPU the legacy one, as in TensorRT-LLM (host contract §5).
        """

    def stream(self) -> Any:
        """Another stream of the host's, with the same attributes."""

    def allocate(self, kind: MemoryKind, num_bytes: int) -> Memory:
        """Memory as a host would make its pool."""

    def delay(self, stream: Any, delay_s: float) -> None:
        """Queues a kernel that takes so long."""

    def multiply(self, stream: Any) -> None:
        """Queues one matrix product, about a millisecond on a large GPU."""

    def tick(self, stream: Any) -> None:
        """Queues a kernel that does nothing."""

    def synchronize(self) -> None:
        """Waits for all of this process's work; a tool that watches reports what it found then."""

    def by(self, way: Way | None) -> None:
        """How ``device.copy`` moves pieces from now on, whatever their size; None: as it likes.

        Raises:
            DeviceError: the device has no kernel.
        """


def is_large(ground: Ground) -> bool:
    """Whether there is room to measure; a device that is played has little."""
    return ground.device.memory().total_bytes >= LARGE_BYTES


def ground_for(name: str) -> Ground:
    """The ground of that name; begins CUDA in this process for ``cuda``.

    Raises:
        DeviceError: there is no such device here.
    """
    if name == "simulated":
        from tests.gpu.simulatedground import SimulatedGround

        return SimulatedGround()
    if name == "cuda":
        from tests.gpu.cudaground import CudaGround

        return CudaGround()
    raise ValueError(f"{name}: one of {NAMES}")


def finish(device: Device, stream: Stream, limit_s: float = WAIT_S) -> None:
    """Waits until all that is queued on a stream is done; for the tests' own threads.

    Raises:
        DeviceError: it failed, or is not done in time.
    """
    event = device.record(stream)
    end_s = time.monotonic() + limit_s
    while not event.query():
        if time.monotonic() > end_s:
            raise DeviceError("no end", f"waiting {limit_s:.0f} s for a stream")
        time.sleep(0.0001)  # a pace, not a wait: the loop ends by its condition
