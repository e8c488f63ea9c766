"""``kvkeep doctor``: with no device, with simulated ones, with one that is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from protocol.device.simulated.faults import Fault, plant
from protocol.device.simulated.settings import Machine, write_machine
from server.cli import cli, gpucheck
from server.cli.gpucheck import Driver
from tests.wire.process import ROOT


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of simulated devices, one of them, that children use, too."""
    write_machine(tmp_path, Machine(num_devices=1, total_bytes=1 << 30, context_bytes=96 << 20))
    monkeypatch.setenv("KVKEEP_SIMULATED_CUDA", str(tmp_path))
    monkeypatch.setattr(gpucheck, "driver", lambda: Driver("", {}))
    return tmp_path


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    shown = CliRunner().invoke(cli, ["doctor", "--json", *arguments])
    assert shown.exception is None or isinstance(shown.exception, SystemExit), shown.output
    return shown.exit_code, json.loads(shown.output)


def of(found: dict[str, Any], about: str) -> str:
    return " / ".join(row["text"] for row in found["findings"] if row["about"].startswith(about))


def test_without_cuda_it_says_so_and_looks_at_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpucheck, "driver", lambda: Driver("", {}))
    monkeypatch.setattr(gpucheck, "ask", lambda arguments: {"devices": [], "error": "no package"})
    shown = CliRunner().invoke(cli, ["doctor"])
    assert shown.exit_code == 0
    assert "no CUDA here (no package)" in shown.output
    assert "open files" in shown.output


def test_the_server_is_looked_for_where_it_is_said_to_be(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpucheck, "driver", lambda: Driver("", {}))
    monkeypatch.setattr(gpucheck, "ask", lambda arguments: {"devices": [], "error": "no package"})
    monkeypatch.setenv("KVKEEP_ENDPOINT", f"ipc://{short_dir}/set")
    code, found = run("--endpoint", f"ipc://{short_dir}/typed")
    assert (code, of(found, "settings")) == (0, "set: endpoint (from command line)")
    assert f"none at ipc://{short_dir}/typed" in of(found, "server")
    code, found = run("--server", "nonsense")
    assert code == 1
    assert "nonsense" in of(found, "settings")


def test_a_driver_without_a_usable_device_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpucheck, "driver", lambda: Driver("570.1", {}))
    monkeypatch.setattr(gpucheck, "ask", lambda arguments: {"devices": [], "error": "no package"})
    code, found = run()
    assert (code, found["worst"]) == (1, "error")


def test_everything_is_tried_on_a_simulated_device(machine: Path) -> None:
    code, found = run()
    assert code == 0, found
    assert f"KVKEEP_SIMULATED_CUDA={machine}" in of(found, "environment")
    told = of(found, "GPU-")
    assert "1 GiB" in told
    assert "another process read 1 MiB as written" in told
    assert "took 96 MiB of the GPU" in told
    assert "page-locking: 64 MiB, read-only" in told
    assert "loading: 1 MiB came through as written" in told
    assert found["worst"] == "warning"  # devices are simulated


def test_simulated_devices_of_no_folder_are_a_warning_and_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVKEEP_SIMULATED_CUDA", str(tmp_path / "none"))
    _, found = run()
    [row] = [row for row in found["findings"] if "simulated" in row["text"]]
    assert (row["level"], "no such folder" in row["text"]) == ("warning", True)
    assert not list(tmp_path.iterdir())
    assert not of(found, "GPU-")


def test_pins_that_are_not_read_only_are_told(machine: Path) -> None:
    write_machine(machine, Machine(num_devices=1, has_read_only_pins=False))
    assert "read-only is not supported" in of(run()[1], "GPU-")


@pytest.mark.parametrize(
    ("fault", "code", "level", "said"),
    [
        (Fault("export", "cudaErrorNotSupported"), 0, "warning", "export failed"),
        (Fault("open", "cudaErrorInvalidValue"), 0, "warning", "open failed"),
        (Fault("run", "cudaErrorIllegalAddress", True), 0, "warning", "open failed"),
        (Fault("pin", "cudaErrorMemoryAllocation"), 1, "error", "page-locking failed"),
        (Fault("create_stream", "cudaErrorUnknown"), 1, "error", "cudaErrorUnknown"),
    ],
    ids=["export", "open", "copy", "pin", "all"],
)
def test_what_fails_is_named_with_its_consequence(
    machine: Path, fault: Fault, code: int, level: str, said: str
) -> None:
    command = "probe open" if fault.call == "run" else ""
    plant(machine, replace(fault, command=command))
    found_code, found = run()
    assert (found_code, found["worst"]) == (code, level), found
    assert said in " / ".join(row["text"] for row in found["findings"])


def test_a_driver_that_hangs_is_a_line(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = gpucheck.ask
    monkeypatch.setattr(gpucheck, "ask", lambda arguments: ask(arguments, limit_s=3.0))
    plant(machine, Fault("copy", code="", hang_s=60.0))
    code, found = run()
    assert code == 1
    assert "no answer in 3 s" in of(found, "GPU-")


def test_the_command_imports_nothing_of_cuda() -> None:
    code = (
        "import sys; from server.cli import doctor, findings, gpucheck, hostcheck; "
        "hostcheck.findings({}); gpucheck.driver(); "
        "found = [name for name in sys.modules if name.startswith(('cupy', 'cuda', 'torch')) "
        "or name.startswith(('protocol.device', 'server.copier.probe'))]; print(found)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
