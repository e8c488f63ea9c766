import pytest

from protocol.device.interface import DeviceError, MemoryKind
from protocol.device.simulated.device import SimulatedDevice
from protocol.device.simulated.driver import Driver
from protocol.device.simulated.faults import Fault


def test_a_buffer_is_page_locked_and_writable_until_closed(device: SimulatedDevice) -> None:
    buffer = device.pinned_buffer(5000)
    assert (buffer.view.size, buffer.view.ctypes.data) == (5000, buffer.address)
    assert not buffer.is_read_only
    buffer.view[:] = 1
    place = device.place(buffer.address)
    assert place is not None
    assert place.kind is MemoryKind.HOST
    buffer.close()
    buffer.close()
    assert device.place(buffer.address) is None


def test_own_device_memory_goes_once(device: SimulatedDevice, driven: Driver) -> None:
    one = device.allocate(4096)
    assert one.num_bytes == 4096
    assert driven.allocation_at(one.address) is not None
    one.close()
    one.close()
    assert driven.allocation_at(one.address) is None


def test_a_pin_whose_end_fails_is_still_there(device: SimulatedDevice, driven: Driver) -> None:
    buffer = device.pinned_buffer(4096)
    driven.faults.inject(Fault("unpin", "cudaErrorUnknown", times=1))
    with pytest.raises(DeviceError):
        buffer.close()
    assert device.place(buffer.address) is not None
    buffer.close()
    assert device.place(buffer.address) is None
