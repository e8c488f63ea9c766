"""Whose memory an address is: a device's, by how it was made, or nobody's but the host's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adapter.devices import locate
from protocol.device.interface import DeviceError, MemoryKind
from tests.adapter.gpu import Gpu, simulated


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    with simulated(monkeypatch, tmp_path) as gpu:
        yield gpu


@pytest.mark.parametrize("kind", [MemoryKind.DEVICE, MemoryKind.VIRTUAL, MemoryKind.MANAGED])
@pytest.mark.parametrize("said", ["cpu", ""])
def test_memory_of_a_device_is_found_by_any_of_its_bytes(
    gpu: Gpu, kind: MemoryKind, said: str
) -> None:
    address = gpu.malloc(8192, kind)
    found = locate(address + 8191, said)
    assert found is not None
    assert (found.place.kind, found.place.base, found.place.num_bytes) == (kind, address, 8192)
    assert found.device.uuid == found.place.device_uuid == gpu.device.uuid


def test_host_memory_has_no_device_be_it_page_locked_or_not(gpu: Gpu) -> None:
    assert locate(np.zeros(64, np.uint8).ctypes.data, "cpu") is None
    buffer = gpu.device.pinned_buffer(4096)
    assert locate(buffer.address, "cpu") is None
    buffer.close()


def test_nobody_asks_a_driver_about_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVKEEP_SIMULATED_CUDA", raising=False)
    asked: list[tuple[str, int]] = []

    def find(kind: str, address: int) -> None:
        asked.append((kind, address))

    assert locate(4096, "cpu", find) is None
    assert asked == [("cpu", 4096)]


def test_a_device_that_does_not_answer_is_no_host_memory() -> None:
    def find(kind: str, address: int) -> None:
        raise DeviceError("cudaErrorNoDevice", "a test")

    with pytest.raises(DeviceError, match="cudaErrorNoDevice"):
        locate(4096, "cuda", find)
