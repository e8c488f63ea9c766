"""The probe's steps on a simulated device, in processes as doctor runs them; where they fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protocol.device.simulated.faults import Fault, plant
from protocol.device.simulated.settings import Machine, uuid_of, write_machine
from server.copier import probe
from tests.wire.process import ROOT

UUID = uuid_of(0).hex()


def run(folder: Path | None, *arguments: str, asked: str = "") -> dict[str, Any]:
    """One probe in a process of its own."""
    environ = {name: value for name, value in os.environ.items() if "CUDA" not in name}
    if folder is not None:
        environ["KVKEEP_SIMULATED_CUDA"] = str(folder)
    done = subprocess.run(
        [sys.executable, "-m", "server.copier.probe", *arguments],
        cwd=ROOT,
        env=environ,
        input=asked,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_machine(tmp_path, Machine(num_devices=2, total_bytes=1 << 30, context_bytes=1 << 20))
    return tmp_path


def errors(answer: dict[str, Any]) -> dict[str, str]:
    return {step: result["error"] for step, result in answer["steps"].items()}


def test_devices_are_listed(folder: Path) -> None:
    found = run(folder, "list")
    assert found["error"] == ""
    assert [device["uuid"] for device in found["devices"]] == [UUID, uuid_of(1).hex()]
    assert {device["total_bytes"] for device in found["devices"]} == {1 << 30}


def test_every_step_works_and_nothing_stays(folder: Path) -> None:
    free = [device["free_bytes"] for device in run(folder, "list")["devices"]]
    answer = run(folder, "share", UUID)
    assert errors(answer) == dict.fromkeys(("allocate", "export", "open", "pin", "load"), "")
    assert answer["steps"]["open"]["process_bytes"] == 1 << 20
    assert answer["steps"]["pin"]["read_only"] is True
    assert [device["free_bytes"] for device in run(folder, "list")["devices"]] == free


def test_a_device_without_memory_is_told_and_the_rest_is_not_tried(folder: Path) -> None:
    write_machine(folder, Machine(num_devices=1, total_bytes=2 << 20, context_bytes=1 << 20))
    found = errors(run(folder, "share", UUID))
    assert "cudaErrorMemoryAllocation" in found.pop("allocate")
    assert set(found.values()) == {"not tried"}


def test_a_handle_of_nobody_is_an_answer(folder: Path) -> None:
    asked = json.dumps({"handle": "00" * 64, "offset_bytes": 0})
    assert run(folder, "open", UUID, asked=asked)["error"]


def test_another_device_than_there_is(folder: Path) -> None:
    answer = run(folder, "share", uuid_of(7).hex())
    assert answer["error"]
    assert answer["steps"] == {}


def test_without_any_device_there_is_one_line() -> None:
    found = run(None, "list")
    if found["devices"]:
        pytest.skip("this machine has a GPU")
    assert found["error"]
    assert "\n" not in found["error"]


def test_a_wrong_question_is_refused() -> None:
    for arguments in ([], ["share"], ["list", "x"], ["unknown"]):
        with pytest.raises(SystemExit):
            probe.main(arguments)


def test_a_device_that_refuses_hides_no_other(folder: Path) -> None:
    plant(folder, Fault(call="bind", code="cudaErrorDevicesUnavailable", device=0))
    refused, other = run(folder, "list")["devices"]
    assert "cudaErrorDevicesUnavailable" in refused["error"]
    assert (other["error"], other["total_bytes"]) == ("", 1 << 30)
    assert other["label"].startswith("GPU-")
