"""What doctor says of GPUs: the driver's files, probes that answer, fail, or never answer."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from protocol.device.cuda import nvml
from server import numa
from server.cli import gpucheck
from server.cli.findings import Level
from server.cli.gpucheck import Driver

LABEL = "GPU-11111111-2222-3333-4444-555555555555"
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (dvs)\n"
    "GCC version:  gcc version 12.2.0\n"
)
INFORMATION = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {LABEL}\nBus Location: \t 0000:4B:00.0\n"


def steps(**errors: str) -> dict[str, Any]:
    """What a probe answers where all went well, but for the steps named."""
    plain = dict.fromkeys(("allocate", "export", "open", "pin", "load"), "") | errors
    found: dict[str, Any] = {
        name: {"error": error, "took_s": 0.016} for name, error in plain.items()
    }
    found["open"]["process_bytes"] = 500 << 20
    found["pin"] |= {"bytes": 64 << 20, "read_only": True}
    return {"error": "", "steps": found}


def test_the_drivers_files_tell_version_and_numa_node(tmp_path: Path) -> None:
    proc, sysfs = tmp_path / "proc", tmp_path / "sys"
    gpu = proc / "driver/nvidia/gpus/0000:4b:00.0"
    gpu.mkdir(parents=True)
    (proc / "driver/nvidia/version").write_text(VERSION)
    (gpu / "information").write_text(INFORMATION)
    assert gpucheck.driver(proc, sysfs) == Driver("570.133.20", {})
    node = sysfs / "bus/pci/devices/0000:4b:00.0"
    node.mkdir(parents=True)
    (node / "numa_node").write_text("1\n")
    assert gpucheck.driver(proc, sysfs) == Driver("570.133.20", {LABEL: 1})
    (node / "numa_node").write_text("-1\n")  # the kernel does not know
    assert gpucheck.driver(proc, sysfs) == Driver("570.133.20", {})
    assert gpucheck.driver(tmp_path, tmp_path) == Driver("", {})


def test_the_older_form_of_the_version_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    file = tmp_path / "driver/nvidia/version"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n")
    assert gpucheck.driver(tmp_path, tmp_path).version == "535.104.05"


def test_no_device_is_a_fault_only_where_the_driver_says_that_one_is_there() -> None:
    plain = gpucheck.no_device("no package", Driver("", {}))
    assert plain.level is Level.NOTE
    assert "no CUDA here (no package)" in plain.text
    broken = gpucheck.no_device("no package", Driver("570.1", {}))
    assert broken.level is Level.ERROR
    assert "cupy-cuda12" in broken.advice


def test_a_device_where_all_works() -> None:
    found = gpucheck.tried(LABEL, steps())
    assert {finding.about for finding in found} == {LABEL}
    assert [finding.level for finding in found] == [Level.OK, Level.NOTE, Level.OK, Level.OK]
    texts = " / ".join(finding.text for finding in found)
    assert "another process read 1 MiB" in texts
    assert "500 MiB of the GPU" in texts
    assert "page-locking: 64 MiB, read-only, 0.26 s per GiB" in texts


def test_a_handle_that_nobody_can_open_is_a_warning_for_the_ring_serves() -> None:
    [shared, *rest] = gpucheck.tried(LABEL, steps(open="no such allocation"))
    assert shared.level is Level.WARNING
    assert "open failed (no such allocation)" in shared.text
    assert "staging ring" in shared.text
    assert "pid namespace" in shared.advice
    assert [finding.level for finding in rest] == [Level.OK, Level.OK]
    [shared, *_] = gpucheck.tried(LABEL, steps(export="not supported", open="not tried"))
    assert "export failed (not supported)" in shared.text


def test_page_locking_that_fails_is_an_error_for_nothing_can_be_loaded() -> None:
    found = gpucheck.tried(LABEL, steps(pin="out of memory", load="not tried"))
    assert found[-1].level is Level.ERROR
    assert "nothing can be loaded" in found[-1].text
    assert "ulimit -l" in found[-1].advice
    answer = steps()
    answer["steps"]["pin"]["read_only"] = False
    assert gpucheck.tried(LABEL, answer)[2].level is Level.NOTE
    assert gpucheck.tried(LABEL, steps(load="other bytes"))[-1].level is Level.ERROR
    assert gpucheck.tried(LABEL, steps(allocate="no memory"))[0].level is Level.ERROR
    assert gpucheck.tried(LABEL, {"error": "gone", "steps": {}})[0].level is Level.ERROR


def test_what_a_device_is() -> None:
    device = {"label": LABEL, "name": "NVIDIA H200", "total_bytes": 1 << 40, "free_bytes": 1 << 30}
    assert gpucheck.seen(device, 1).text == "NVIDIA H200, 1 TiB, 1 GiB free, NUMA node 1"
    assert gpucheck.seen(device, None).text.endswith("NUMA node unknown")


def test_who_may_use_a_device_is_said_where_not_all_may() -> None:
    device: dict[str, Any] = {"label": LABEL, "compute_mode": 0, "error": ""}
    assert gpucheck.usable(device) == []
    assert gpucheck.usable(device | {"compute_mode": None}) == []
    [alone] = gpucheck.usable(device | {"compute_mode": 3})
    assert (alone.level, "EXCLUSIVE_PROCESS" in alone.text) == (Level.WARNING, True)
    busy = gpucheck.usable(device | {"compute_mode": 3, "error": "busy"})
    assert [finding.level for finding in busy] == [Level.WARNING] * 2
    [closed] = gpucheck.usable(device | {"compute_mode": 2, "error": "busy"})
    assert (closed.level, "PROHIBITED" in closed.text) == (Level.ERROR, True)
    [broken] = gpucheck.usable(device | {"error": "busy"})
    assert (broken.level, "busy" in broken.text) == (Level.ERROR, True)


def test_modes_are_numbered_as_nvml_does() -> None:
    assert (gpucheck._PROHIBITED, gpucheck._EXCLUSIVE) == (nvml.PROHIBITED, nvml.EXCLUSIVE)


def test_a_mig_instance_is_said_to_go_through_the_ring() -> None:
    found = gpucheck.tried("MIG-1", steps())
    assert found[0].level is Level.NOTE
    assert "staging ring" in found[0].text
    assert not any("another process" in finding.text for finding in found)


HERE = frozenset(os.sched_getaffinity(0))
TWO = {0: HERE, 1: frozenset({max(HERE) + 1000})}
"""As if there were a second node; the kernel knows better."""


def test_whether_memory_can_be_placed_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpucheck.placing(LABEL, 0, {0: HERE}) == []
    assert gpucheck.placing(LABEL, None, {}) == []
    assert gpucheck.placing(LABEL, None, TWO)[0].level is Level.NOTE
    [far] = gpucheck.placing(LABEL, 1, TWO)
    assert (far.level, "SYS_NICE" in far.advice) == (Level.WARNING, True)
    [near] = gpucheck.placing(LABEL, 0, TWO)
    assert near.level is Level.OK
    monkeypatch.setattr(numa, "_POLICY_CALLS", {})
    [by_cpus] = gpucheck.placing(LABEL, 0, TWO)
    assert (by_cpus.level, "by CPUs alone" in by_cpus.text) == (Level.OK, True)
    assert os.sched_getaffinity(0) == HERE


def test_a_probe_that_never_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeping.py").write_text("import time\ntime.sleep(60)\n")
    (tmp_path / "raising.py").write_text("raise RuntimeError('this is why')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpucheck, "_PROBE", "sleeping")
    begun_s = time.monotonic()
    assert gpucheck.ask([], limit_s=0.5) == {"error": "no answer in 0.5 s"}
    assert time.monotonic() - begun_s < 20
    monkeypatch.setattr(gpucheck, "_PROBE", "raising")
    assert "RuntimeError: this is why" in gpucheck.ask([])["error"]
    found = gpucheck.findings({}, Driver("", {}))
    assert [finding.level for finding in found] == [Level.ERROR]
