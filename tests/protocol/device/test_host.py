import numpy as np
import pytest

from protocol.device.host import HostDevice
from protocol.device.interface import DeviceError, Direction, batch_of


def test_copies_are_done_when_the_call_returns() -> None:
    device = HostDevice()
    pool, arena = np.zeros(64, dtype=np.uint8), np.arange(64, dtype=np.uint8)
    stream = device.borrow_stream(object())
    batch = batch_of([(pool.ctypes.data + 8, arena.ctypes.data + 4, 3)])
    device.copy(stream, batch, Direction.TO_DEVICE)
    assert pool[7:12].tolist() == [0, 4, 5, 6, 0]
    assert device.record(stream).query()
    device.wait(device.create_stream(), device.record(stream))
    stream.close()


def test_host_memory_is_nobodys_and_has_no_handle() -> None:
    device = HostDevice()
    device.bind()
    held = np.zeros(8, dtype=np.uint8)
    assert device.place(held.ctypes.data) is None
    assert len(device.uuid) == 16
    with pytest.raises(DeviceError):
        device.export(held.ctypes.data)
    with pytest.raises(DeviceError):
        device.open(bytes(64))


def test_buffers_are_whole_and_writable() -> None:
    device = HostDevice()
    buffer = device.pinned_buffer(10_000)
    buffer.view[:] = 5
    assert buffer.view.size == 10_000
    assert buffer.view.ctypes.data == buffer.address
    made = device.allocate(4096)
    device.copy(
        device.create_stream(),
        batch_of([(made.address, buffer.address, 4096)]),
        Direction.TO_DEVICE,
    )
    back = device.pinned_buffer(4096)
    device.copy(
        device.create_stream(), batch_of([(back.address, made.address, 4096)]), Direction.TO_HOST
    )
    assert (back.view == 5).all()
    for one in (buffer, back, made, device.pin(buffer.address, 4096), device.pinned_over(0, 4096)):
        one.close()
        one.close()
    assert device.memory().total_bytes == 0
