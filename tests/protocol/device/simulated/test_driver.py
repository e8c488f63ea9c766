"""Two real processes and one device: what another process opens, and what deaths leave."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.device.interface import DeviceError, Direction, batch_of
from protocol.device.simulated import driver, ledger, settings
from protocol.device.simulated.device import SimulatedDevice
from protocol.device.simulated.driver import Driver
from tests.protocol.device.moved import content, wait, wait_for

# Obeys lines of JSON; answers each with one.
CHILD = """
import json, sys, time
from protocol.device.backends import device_by_uuid
from protocol.device.interface import DeviceError, Direction, batch_of
from protocol.device.simulated import driver, settings
device, held = None, []
for line in sys.stdin:
    order = json.loads(line)
    try:
        if order["do"] == "bind":
            device = device_by_uuid(settings.uuid_of(order["device"]))
            device.bind()
            answer = {}
        elif order["do"] == "make":
            address = device.malloc(order["size"])
            driver.current().allocation_at(address).array[:] = order["value"]
            answer = {"handle": device.export(address).handle.hex(), "address": address}
        elif order["do"] == "free":
            device.free(order["address"])
            answer = {}
        elif order["do"] == "open":
            held.append(device.open(bytes.fromhex(order["handle"])))
            answer = {"base": held[-1].base, "size": held[-1].num_bytes}
        elif order["do"] == "close":
            held.pop().close()
            answer = {"opened": driver.current().num_opened()}
        elif order["do"] == "add":
            buffer, stream = device.pinned_buffer(held[-1].num_bytes), device.create_stream()
            pair = (held[-1].base, buffer.address)
            for direction, (source, target) in ((Direction.TO_HOST, pair),
                                                (Direction.TO_DEVICE, pair[::-1])):
                batch = batch_of([(target, source, buffer.view.size)])
                device.copy(stream, batch, direction)
                while not device.record(stream).query():
                    time.sleep(0.001)
                buffer.view[:] += order["value"] if direction is Direction.TO_HOST else 0
            answer = {"dlpack": hasattr(held[-1].as_array(), "__dlpack__")}
    except DeviceError as error:
        answer = {"code": error.code}
    print(json.dumps(answer), flush=True)
"""


class Child:
    """Another process that uses the device."""

    def __init__(self, index: int = 0, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.ask("bind", device=index)

    def ask(self, do: str, **order: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self, is_killed: bool = False) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if is_killed:
            self.process.send_signal(signal.SIGKILL)
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def test_another_process_reads_and_writes_the_very_bytes(device: SimulatedDevice) -> None:
    pool = device.malloc(1 << 16)
    content(pool)[:] = np.arange(1 << 16, dtype=np.uint32).astype(np.uint8)
    child = Child()
    handle = device.export(pool + 100).handle.hex()
    first, second = child.ask("open", handle=handle), child.ask("open", handle=handle)
    assert first == second
    assert first["size"] == 1 << 16
    assert child.ask("add", value=3)["dlpack"]
    expected = (np.arange(1 << 16, dtype=np.uint32) + 3).astype(np.uint8)
    assert (content(pool) == expected).all()
    assert child.ask("close") == {"opened": 1}
    assert child.ask("close") == {"opened": 0}
    child.end()


def test_handles_that_open_nothing(device: SimulatedDevice) -> None:
    child, pool = Child(), device.malloc(4096)
    handle = device.export(pool).handle
    with pytest.raises(DeviceError, match="one's own"):
        device.open(handle)
    device.free(pool)
    wrong = [handle, bytes(64), handle[:63], os.urandom(64), handle[:11] + os.urandom(53)]
    codes = [child.ask("open", handle=one.hex())["code"] for one in wrong]
    assert codes == ["cudaErrorInvalidResourceHandle"] * 5
    child.end()


def test_a_freed_allocation_is_poison_to_who_has_it_open(
    device: SimulatedDevice, folder: Path
) -> None:
    child = Child()
    made = child.ask("make", size=8192, value=7)
    opened = device.open(bytes.fromhex(made["handle"]))
    assert (opened.as_array() == 7).all()
    child.ask("free", address=made["address"])
    assert (opened.as_array() == driver.POISON).all()
    assert ledger.census(folder, 0).freed_bytes == 8192
    opened.close()
    opened.close()
    with pytest.raises(DeviceError):
        opened.as_array()
    assert ledger.census(folder, 0) == ledger.Census(0, 0, 2)
    child.end()


def test_memory_of_a_killed_process_stays_while_it_is_open(
    device: SimulatedDevice, folder: Path
) -> None:
    free_before = device.memory().free_bytes
    child = Child()
    made = child.ask("make", size=8192, value=7)
    opened, stream = device.open(bytes.fromhex(made["handle"])), device.create_stream()
    child.end(is_killed=True)
    buffer = device.pinned_buffer(8192)
    device.copy(stream, batch_of([(buffer.address, opened.base, 8192)]), Direction.TO_HOST)
    wait(device.record(stream))
    assert (buffer.view == 7).all()
    assert device.memory().free_bytes == free_before - 8192
    opened.close()
    wait_for(lambda: device.memory().free_bytes == free_before)


def test_a_killed_opener_leaves_nothing(device: SimulatedDevice) -> None:
    free_before = device.memory().free_bytes
    child, pool = Child(), device.malloc(4096)
    child.ask("open", handle=device.export(pool).handle.hex())
    assert device.memory().free_bytes < free_before - 4096
    child.end(is_killed=True)
    device.free(pool)
    assert device.memory().free_bytes == free_before


def test_a_device_that_may_not_see_another_opens_nothing_of_it(folder: Path) -> None:
    settings.write_machine(folder, settings.Machine(2, refused_peers=((1, 0),)))
    made = driver.current()
    assert made is not None
    device = made.device(0)
    handle = device.export(device.malloc(4096)).handle.hex()
    refused, seen = Child(1), Child(0)
    assert refused.ask("open", handle=handle) == {"code": "cudaErrorPeerAccessUnsupported"}
    assert seen.ask("open", handle=handle)["size"] == 4096
    for child in (refused, seen):
        child.end()


def test_a_fork_cannot_use_the_devices(device: SimulatedDevice) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            device.bind()
            os.write(writer, b"bound")
        except DeviceError as error:
            os.write(writer, error.code.encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 100) == b"cudaErrorInitializationError"
    os.close(reader)
    os.waitpid(child, 0)


def test_one_driver_for_each_folder(driven: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver.current() is driven
    monkeypatch.delenv(settings.FOLDER)
    assert driver.current() is None


def test_a_device_that_is_not_there(driven: Driver) -> None:
    assert [device.index for device in driven.devices()] == [0, 1]
    with pytest.raises(DeviceError, match="cudaErrorInvalidDevice"):
        driven.device(2)


def test_delays_are_given_by_the_seed(shm_dir: Path) -> None:
    def chances(seed: int) -> list[float]:
        made = Driver(settings.Settings(shm_dir, seed=seed))
        return [made.next_rng().random() for _ in range(5)]

    assert chances(1) == chances(1)
    assert chances(1) != chances(2)
