"""A host on a simulated device: its memory's kinds, its streams, its errors."""

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.errors import ExecutorDiedError, HostError  # noqa: E402
from adapter.conformance.host.hardware import make_hardware  # noqa: E402
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.simulated import SimulatedHardware, simulating  # noqa: E402
from protocol.device.backends import device_of  # noqa: E402
from protocol.device.interface import DeviceError, MemoryKind  # noqa: E402
from protocol.device.simulated.driver import current  # noqa: E402
from protocol.device.simulated.settings import FOLDER  # noqa: E402
from tests.adapter.conformance.host.lifecycles import WAIT_S, engine, prompt  # noqa: E402

pytestmark = pytest.mark.torch

SEEDS = itertools.count(1)


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    with simulating(next(SEEDS)):
        yield


def kind_at(address: int) -> MemoryKind:
    device = device_of("cpu", address)
    assert device is not None
    place = device.place(address)
    assert place is not None
    return place.kind


@pytest.mark.parametrize(
    ("private", "is_virtual", "kind"),
    [
        (False, False, MemoryKind.DEVICE),
        (True, False, MemoryKind.MANAGED),
        (False, True, MemoryKind.VIRTUAL),
        (True, True, MemoryKind.VIRTUAL),
    ],
)
def test_memory_is_of_the_kind_that_real_hosts_have(
    private: bool, is_virtual: bool, kind: MemoryKind
) -> None:
    memory = SimulatedHardware(1).allocate(8192, private=private, is_virtual=is_virtual)
    assert (memory.shape, memory.dtype, memory.device.type) == ((8192,), torch.uint8, "cpu")
    device = device_of("cpu", memory.data_ptr() + 100)
    assert device is not None
    assert device.uuid.endswith(b"01")
    assert kind_at(memory.data_ptr()) is kind


def test_memory_goes_with_the_last_tensor_over_it() -> None:
    memory = SimulatedHardware(0).allocate(8192, private=False)
    address, last = memory.data_ptr(), memory[16:32].view(torch.float32)
    del memory
    gc.collect()
    last.fill_(1.0)
    assert kind_at(address) is MemoryKind.DEVICE
    del last
    gc.collect()
    assert device_of("cpu", address) is None


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, MemoryKind.DEVICE),
        ({"private_pool": True}, MemoryKind.MANAGED),
        ({"epoch": "E3", "layout": "v2"}, MemoryKind.VIRTUAL),
    ],
)
def test_an_engine_computes_there_what_it_computes_in_host_memory(
    options: dict[str, Any], kind: MemoryKind
) -> None:
    with engine(device="host", **options) as host:
        expected = host.submit(prompt(30), 5).result(WAIT_S).tokens
    with engine(device="simulated", **options) as host:
        base = host.device.memory.groups[0].regions[0].data_ptr()
        assert kind_at(base) is kind
        assert host.submit(prompt(30), 5).result(WAIT_S).tokens == expected


def test_all_pools_are_gone_with_their_engines() -> None:
    with engine(device="simulated", estimate_kv=True) as host:
        host.submit(prompt(10), 1).result(WAIT_S)
    del host
    gc.collect()
    driver = current()
    assert driver is not None
    assert driver.memory.ranges() == []


def test_work_that_raises_ends_the_executor_as_in_host_memory() -> None:
    with engine("rule://stream-raises", device="simulated") as host:
        with pytest.raises(ExecutorDiedError, match="stream-raises"):
            host.submit(prompt(10), 2).result(WAIT_S)
        assert host.error is not None


def test_only_the_engines_own_threads_are_bound() -> None:
    hardware = SimulatedHardware(0)
    device = hardware._device
    stream = hardware.stream("S")
    said: list[object] = []

    def ask(*first: Callable[[], None]) -> None:
        try:
            for call in first:
                call()
            said.append(device.record(device.borrow_stream(stream)).query())
        except DeviceError as error:
            said.append(error)

    for first in ((), (hardware.bind,)):
        thread = threading.Thread(target=ask, args=first)
        thread.start()
        thread.join(WAIT_S)
    assert "has not bound" in str(said[0])
    assert isinstance(said[1], bool)
    stream.close(WAIT_S)


def test_nothing_is_simulated_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_hardware(HostOptions(device="simulated"), 0), SimulatedHardware)
    monkeypatch.delenv(FOLDER)
    with pytest.raises(HostError, match=FOLDER):
        make_hardware(HostOptions(device="simulated"), 0)
