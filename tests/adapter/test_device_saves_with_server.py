"""Saves of an engine on a device, read back by one in host memory: every byte, however the device
dallies and however soon pages are handed out again; and a server that cannot open the handle.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.device.interface import MemoryKind
from protocol.device.simulated.driver import Driver
from protocol.device.simulated.faults import Fault, plant
from tests.adapter.devicearena import simulated_driver
from tests.adapter.devicehost import DeviceEngineRig
from tests.adapter.enginerig import SIZE, EngineRig, launched, write_model
from tests.adapter.hostlike import tokens
from tests.wire.process import ServerProcess

NUM_PAGES = 24
"""So few that each request gets pages whose saves have only just been settled."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Devices that the server's processes share."""
    return tmp_path_factory.mktemp("cuda")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVKEEP_SIMULATED_CUDA", str(folder))
        patch.setenv("KVKEEP_SIMULATED_CUDA_DELAY_US", "3000")
        with launched() as process:
            yield process


@pytest.fixture
def driver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    with simulated_driver(folder, monkeypatch, delay_us=3000) as driver:
        yield driver
    plant(folder)


def save(rig: DeviceEngineRig, prompts: list[list[int]]) -> None:
    """Each request's pages are overwritten as soon as the host has them back."""
    for prompt in prompts:
        outcome = rig.run_saved(prompt)
        rig.wipe(outcome.pages)
    rig.sample()


def read_back(server: ServerProcess, model: Path, prompts: list[list[int]]) -> None:
    """An engine without a device loads all of it; ``run`` compares each byte."""
    reader = EngineRig(server.url, model)
    reader.register()
    for prompt in prompts:
        whole = (len(prompt) - 1) // SIZE * SIZE
        assert reader.run_saved(prompt).offered == whole
    reader.close()


@pytest.mark.parametrize(
    ("kind", "staging"),
    [
        (MemoryKind.DEVICE, "ring"),
        (MemoryKind.DEVICE, "auto"),
        (MemoryKind.VIRTUAL, "auto"),
        (MemoryKind.MANAGED, "auto"),
    ],
)
def test_what_a_device_engine_saves_is_what_its_forwards_left(
    server: ServerProcess,
    driver: Driver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: MemoryKind,
    staging: str,
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_STAGING", staging)
    model = write_model(tmp_path / "m")
    rig = DeviceEngineRig(server.url, model, driver, kind, first_page=2, num_pages=NUM_PAGES)
    rig.register()
    is_exported = kind is MemoryKind.DEVICE and staging == "auto"
    assert ("ring_lots_lent" in rig.worker.counters()) != is_exported
    prompts = [tokens(22, seed) for seed in range(12)]
    save(rig, prompts)
    read_back(server, model, prompts)
    rig.close()


def test_a_copier_that_cannot_open_the_handle_makes_it_a_ring(
    server: ServerProcess,
    driver: Driver,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in a container with a pid namespace of its own: exporting works, opening does not."""
    caplog.set_level(logging.INFO, "kvkeep")
    plant(folder, Fault("open", "cudaErrorInvalidResourceHandle", command="server.copier.gpu"))
    model = write_model(tmp_path / "m")
    rig = DeviceEngineRig(server.url, model, driver, num_pages=NUM_PAGES)
    rig.register()
    lines = [line.getMessage() for line in caplog.records if "staging ring" in line.getMessage()]
    assert len(lines) == 1
    assert "cudaErrorInvalidResourceHandle" in lines[0]
    prompts = [tokens(22, seed) for seed in range(4)]
    save(rig, prompts)
    read_back(server, model, prompts)
    rig.close()
