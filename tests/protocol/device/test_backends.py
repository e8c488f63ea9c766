import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from protocol.device.backends import device_by_uuid, device_of, visible_devices
from protocol.device.interface import DeviceError, MemoryKind
from protocol.device.simulated.device import SimulatedDevice
from protocol.device.simulated.driver import Driver
from protocol.device.simulated.settings import FOLDER, VISIBLE, uuid_of


@pytest.mark.parametrize("kind", [MemoryKind.DEVICE, MemoryKind.VIRTUAL, MemoryKind.MANAGED])
def test_memory_is_found_whatever_its_tensor_says(
    device: SimulatedDevice, driven: Driver, kind: MemoryKind
) -> None:
    other = driven.device(1)
    address = other.malloc(8192, kind)
    for device_type in ("cpu", ""):
        assert device_of(device_type, address + 100) is other
    assert device_by_uuid(uuid_of(1)) is other
    assert visible_devices() == [device, other]


def test_host_memory_has_no_device_even_page_locked(device: SimulatedDevice) -> None:
    plain = np.zeros(16, dtype=np.uint8)
    assert device_of("cpu", plain.ctypes.data) is None
    assert device_of("cpu", device.pinned_buffer(4096).address) is None


def test_nothing_is_simulated_unless_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert device_of("cpu", 1 << 20) is None
    with pytest.raises(DeviceError, match="not switched on"):
        device_by_uuid(uuid_of(0))


def test_while_devices_are_simulated_a_real_one_is_refused_with_the_reason(
    device: SimulatedDevice,
) -> None:
    with pytest.raises(DeviceError, match=f"{FOLDER} is set"):
        device_by_uuid(bytes(range(16)))


def test_what_is_not_a_uuid_is_refused() -> None:
    with pytest.raises(DeviceError, match="3 bytes"):
        device_by_uuid(b"abc")


def test_finding_no_device_loads_neither_cuda_nor_the_simulation() -> None:
    code = (
        "import sys; from protocol.device.backends import device_of; device_of('cpu', 4096); "
        "sys.exit(any(name.split('.')[0] in ('cupy', 'cuda', 'torch') or name == "
        "'protocol.device.simulated.driver' for name in sys.modules))"
    )
    environment = {key: value for key, value in os.environ.items() if key != FOLDER}
    run = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=False)
    assert run.returncode == 0


def test_a_process_may_be_shown_one_device(folder: Path) -> None:
    code = (
        "from protocol.device.backends import visible_devices, device_by_uuid\n"
        "from protocol.device.simulated.settings import uuid_of\n"
        "print([device.index for device in visible_devices()])\n"
        "device_by_uuid(uuid_of(0))"
    )
    words = uuid_of(1).hex()
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, VISIBLE: f"GPU-{words[:8]}-{words[8:]}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stdout == "[1]\n"
    assert "cudaErrorInvalidDevice" in run.stderr
