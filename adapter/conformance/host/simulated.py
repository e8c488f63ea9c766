"""An engine on a simulated CUDA device: memory of the kinds that real ones have, its streams.

The tensors are the host's own (their device type stays ``cpu``), their memory is the device's: who
shares it finds the device by the address.

Must not know: models, pages, the connector. ``simulating`` is for whoever runs engines and servers,
once for all of them.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.hardware import WorkStream
from protocol.device.interface import MemoryKind
from protocol.device.simulated.driver import current, ending
from protocol.device.simulated.settings import FOLDER, SEED, Machine, write_machine

NUM_DEVICES: Final = 4
_SHARED_MEMORY: Final = Path("/dev/shm")


class SimulatedHardware:
    """One rank's device.

    Args:
        rank: Number of the rank, and of its device.

    Raises:
        HostError: If simulated devices are not switched on.
    """

    def __init__(self, rank: int) -> None:
        driver = current()
        if driver is None:
            raise HostError(f"a simulated device needs {FOLDER}: see simulating()")
        self._driver = driver
        self._device = driver.device(rank)
        self._device.bind()

    def allocate(self, num_bytes: int, *, private: bool, is_virtual: bool = False) -> Tensor:
        """Memory of the device; it goes with the last tensor over it. See ``Hardware``."""
        kind = MemoryKind.MANAGED if private else MemoryKind.DEVICE
        kind = MemoryKind.VIRTUAL if is_virtual else kind
        address = self._device.malloc(num_bytes, kind)
        made = self._driver.allocation_at(address)
        assert made is not None
        # Holds the mapping too: a tensor that outlives the driver reads what is freed, not a hole.
        held = (ctypes.c_uint8 * num_bytes).from_buffer(made.array.data)
        weakref.finalize(held, self._device.free, address).atexit = False
        return torch.frombuffer(held, dtype=torch.uint8)

    def stream(self, name: str) -> WorkStream:
        """A stream of the device."""
        return self._device.create_stream(name)

    def bind(self) -> None:
        """Make the device the calling thread's."""
        self._device.bind()


@contextmanager
def simulating(seed: int) -> Iterator[Mapping[str, str]]:
    """Switches simulated devices on for this process and those that it starts.

    Args:
        seed: Of delays and orders.

    Yields:
        The environment that does so, for processes that do not inherit it.
    """
    where = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(
        prefix=f"kvkeep-devices-{os.getpid()}-", dir=where, ignore_cleanup_errors=True
    ) as name:
        write_machine(Path(name), Machine(num_devices=NUM_DEVICES))
        environ = {FOLDER: name, SEED: str(seed)}
        before = {key: os.environ.get(key) for key in environ}
        os.environ.update(environ)
        try:
            with ending(Path(name)):
                yield environ
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value
