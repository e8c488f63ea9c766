"""Step ``facts``: what this machine is, and whether doctor finds anything wrong with it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys

from server import numa
from tests.gpu.ground import Ground
from tests.slow.figure import Figure
from tests.wire.process import ROOT

DOCTOR_EXIT = "doctor's exit code"
DOCTOR_LIMIT_S = 25.0
PACKAGES = ("numpy", "pyzmq", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x", "torch")


def measure(ground: Ground, is_quick: bool) -> dict[str, Figure]:
    """Asks the driver, the packages and ``doctor``."""
    memory = ground.device.memory()
    figures = {
        "device": Figure(ground.device.name),
        "device memory, GiB": Figure(round(memory.total_bytes / (1 << 30), 1)),
        "cores": Figure(os.cpu_count()),
        "NUMA nodes": Figure(len(numa.nodes_of())),
        "device's NUMA node": Figure(str(ground.device.numa_node)),
        "kernel": Figure(os.uname().release),
        "python": Figure(platform.python_version()),
    }
    figures |= {name: Figure(value) for name, value in ground.attributes().items()}
    for name in PACKAGES:
        try:
            figures[name] = Figure(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    done = subprocess.run(
        [sys.executable, "-m", "server", "doctor", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DOCTOR_LIMIT_S,
        check=False,
    )
    for row in json.loads(done.stdout)["findings"]:
        if row["level"] != "ok" or row["about"].startswith(("GPU", "driver")):
            figures[f"doctor, {row['level']}: {row['about']}: {row['text']}"] = Figure(True)
    figures[DOCTOR_EXIT] = Figure(done.returncode, "0", done.returncode == 0)
    return figures
