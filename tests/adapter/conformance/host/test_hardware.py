"""Host memory as a server can map it, or not; streams that keep their order."""

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.hardware import HostHardware, make_hardware  # noqa: E402
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.pages import find_pool  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("private", [False, True])
def test_private_memory_is_no_shared_pool(private: bool) -> None:
    memory = HostHardware().allocate(4096, private=private)
    assert (memory.shape, memory.dtype) == ((4096,), torch.uint8)
    assert (find_pool(memory.data_ptr(), 4096) is None) == private


def test_streams_wait_for_each_other() -> None:
    hardware, order = HostHardware(), []
    first, second = hardware.stream("first"), hardware.stream("second")
    first.enqueue(lambda: order.append(first.name))
    second.wait_stream(first)
    second.enqueue(lambda: order.append(second.name))
    second.synchronize(10)
    assert order == ["first", "second"]
    for stream in (first, second):
        stream.close(10)


def test_the_options_name_the_hardware() -> None:
    assert isinstance(make_hardware(HostOptions(device="host"), 3), HostHardware)
