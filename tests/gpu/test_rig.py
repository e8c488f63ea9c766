"""A handle that cannot be opened is no success of a step: the ring does everything instead."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from protocol.device.simulated.faults import Fault, plant
from tests.adapter.enginerig import launched
from tests.gpu import rig
from tests.gpu.ground import Ground
from tests.gpu.rig import DeviceRig, PoolKind

REFUSED = Fault("open", "cudaErrorInvalidResourceHandle", command="server.copier.gpu")


@pytest.mark.parametrize("name", ["roundtrip", "torture", "deaths", "rates", "hooks", "footprint"])
def test_a_step_fails_where_the_ring_takes_the_handles_place(name: str, simulated: Ground) -> None:
    plant(Path(os.environ["KVKEEP_SIMULATED_CUDA"]), REFUSED)
    with pytest.raises(AssertionError, match="shared by ring and not by handle") as caught:
        importlib.import_module(f"tests.gpu.{name}").measure(simulated, True)
    assert "cudaErrorInvalidResourceHandle" in str(caught.value), "the server's own words"


def test_an_engine_that_is_never_ready_says_what_the_server_said(
    simulated: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig, "READY_LIMIT_S", 1.0)
    plant(Path(os.environ["KVKEEP_SIMULATED_CUDA"]), Fault("pin"))
    with launched("--l1-size", "64M") as server:
        engine = DeviceRig(server.url, tmp_path / "m", simulated, PoolKind())
        try:
            with pytest.raises(AssertionError, match="the end of the server's log"):
                engine.register()
        finally:
            engine.close()
