"""One simulated device, with a folder and a driver of its own, for tests of what stands on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.device import backends
from protocol.device.interface import Device, MemoryKind
from protocol.device.simulated import driver
from protocol.device.simulated.faults import Fault
from protocol.device.simulated.settings import DELAY_US, FOLDER, Machine, uuid_of, write_machine


class Gpu:
    """A device and what the test made on it.

    Attributes:
        folder: shared with other processes.
        device: number 0.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.device: Any = backends.device_by_uuid(uuid_of(0))
        self.device.bind()

    def other(self) -> Any:
        """Device number 1."""
        return backends.device_by_uuid(uuid_of(1))

    def malloc(self, num_bytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """The address of some device memory."""
        return int(self.device.malloc(num_bytes, kind))

    def faulty(self, *faults: Fault) -> None:
        """Plants faults for this process; none of them ends those before."""
        current = driver.current()
        assert current is not None
        current.faults.inject(*faults)

    def content(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """The very bytes of device memory, which only tests may touch."""
        current = driver.current()
        assert current is not None
        made = current.allocation_at(address)
        assert made is not None
        begin = address - made.address
        return made.array[begin : begin + num_bytes]

    @property
    def seam(self) -> Device:
        """The device as the code under test sees it."""
        return self.device  # type: ignore[no-any-return]


@contextmanager
def simulated(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    machine: Machine | None = None,
    delay_us: int = 200,
) -> Iterator[Gpu]:
    """Simulated devices until the end of the block; nothing of them stays."""
    folder.mkdir(parents=True, exist_ok=True)
    if machine is not None:
        write_machine(folder, machine)
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.setenv(DELAY_US, str(delay_us))
    with driver.ending(folder):
        yield Gpu(folder)
