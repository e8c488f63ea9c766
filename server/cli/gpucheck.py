"""What ``doctor`` says of GPUs: what the driver's files tell, and what probes in children did.

Must not know: CUDA (``server.copier.probe`` does, in processes of its own), how findings are shown.
Runs in: the process of the command line.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.extras import install
from server import config as settings
from server import numa
from server.cli.findings import Finding, Level

PROBE_LIMIT_S = 90.0
_PROBE = "server.copier.probe"
_VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_SIMULATED = "KVKEEP_SIMULATED_CUDA"
_PROHIBITED, _EXCLUSIVE = 2, 3
"""Compute modes, as NVML numbers them."""
_RING = "engines on it save through a staging ring, one more copy of each page"
_CONTAINERS = (
    "server and engine need one pid namespace and both the GPU; it does not work in MIG instances "
    "and under confidential computing (docs/cuda.md)"
)


@dataclass(frozen=True)
class Driver:
    """What NVIDIA's kernel driver says of itself in files.

    Attributes:
        version: of the driver, or empty where there is none.
        numa_nodes: name of a GPU (``GPU-…``) to the number of its NUMA node, where both are known.
    """

    version: str
    numa_nodes: Mapping[str, int]


def driver(proc: Path = Path("/proc"), sysfs: Path = Path("/sys")) -> Driver:
    """Reads the driver's files; what cannot be read is left out.

    Args:
        proc: where proc is mounted.
        sysfs: where sysfs is mounted.
    """
    nodes: dict[str, int] = {}
    for file in sorted(proc.glob("driver/nvidia/gpus/*/information")):
        text = _text(file)
        name = re.search(r"GPU UUID:\s*(\S+)", text)
        place = re.search(r"Bus Location:\s*(\S+)", text)
        if name and place:
            node = _text(sysfs / "bus/pci/devices" / place[1].lower() / "numa_node").strip()
            if node.isdigit():
                nodes[name[1]] = int(node)
    version = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", _text(proc / "driver/nvidia/version"))
    return Driver(version[1] if version else "", nodes)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def ask(arguments: Sequence[str], limit_s: float = PROBE_LIMIT_S) -> dict[str, Any]:
    """What a probe in a child process answers.

    Args:
        arguments: of the probe.
        limit_s: longest wait, seconds; then it is killed, with what it started.

    Returns:
        Its JSON object, or one with ``error`` alone when there was none.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", _PROBE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        shown, said = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        try:
            child.communicate(timeout=1.0)
        except subprocess.TimeoutExpired:
            return {
                "error": f"no answer in {limit_s:g} s, and it cannot be ended: the driver hangs"
            }
        return {"error": f"no answer in {limit_s:g} s"}
    try:
        answer: dict[str, Any] = json.loads(shown)
    except ValueError:
        last = said.strip().splitlines()[-1:] or ["nothing was said"]
        return {"error": f"the probe ended with {child.returncode}: {last[0]}"}
    return answer


def findings(environ: Mapping[str, str], installed: Driver) -> list[Finding]:
    """Everything about GPUs.

    Args:
        environ: of this process; the probes have it, too.
        installed: what the driver's files say.
    """
    found = [
        Finding(Level.NOTE, "environment", f"{name}={environ[name]}")
        for name in _VISIBLE
        if name in environ
    ]
    if environ.get(_SIMULATED):
        found.append(simulated(environ[_SIMULATED]))
        if not Path(environ[_SIMULATED]).is_dir():
            return found  # a probe would make it
    listed = ask(["list"])
    if "devices" not in listed:
        return [*found, Finding(Level.ERROR, "GPUs", str(listed["error"]))]
    if listed["error"]:
        return [*found, no_device(listed["error"], installed)]
    if installed.version:
        found.append(Finding(Level.OK, "driver", f"NVIDIA {installed.version}"))
    for device in listed["devices"]:
        label = str(device["label"])
        numa_node = installed.numa_nodes.get(label)
        found += usable(device)
        if device["error"]:
            continue
        found.append(seen(device, numa_node))
        found += placing(label, numa_node, numa.nodes_of())
        found += tried(label, ask(["share", str(device["uuid"])]))
    return found


def simulated(folder: str) -> Finding:
    """That devices are simulated, which nobody wants but a test.

    Args:
        folder: that the environment names.
    """
    what = "no GPU is looked at" if Path(folder).is_dir() else "there is no such folder"
    text = f"{_SIMULATED}={folder}: devices are simulated, {what}"
    return Finding(Level.WARNING, "environment", text, f"unset {_SIMULATED}; it is for tests")


def usable(device: Mapping[str, Any]) -> list[Finding]:
    """What keeps processes off a device; nothing where all may use it.

    Args:
        device: as the probe lists it.
    """
    label, mode = str(device["label"]), device["compute_mode"]
    found = []
    if mode == _EXCLUSIVE:
        text = f"compute mode EXCLUSIVE_PROCESS: no copier can work beside an engine; {_RING}"
        advice = "nvidia-smi -c DEFAULT, or one MPS daemon for server and engines (docs/cuda.md)"
        found.append(Finding(Level.WARNING, label, text, advice))
    if device["error"]:
        why = "compute mode PROHIBITED" if mode == _PROHIBITED else str(device["error"])
        advice = "nvidia-smi -c DEFAULT" if mode == _PROHIBITED else ""
        # With an engine on it that is what an exclusive device answers everybody else.
        level = Level.WARNING if mode == _EXCLUSIVE else Level.ERROR
        found.append(Finding(level, label, f"nothing could be tried: {why}", advice))
    return found


def no_device(why: str, installed: Driver) -> Finding:
    """That no device can be used; an error only where the driver says that one is there.

    Args:
        why: what the probe said.
        installed: what the driver's files say.
    """
    if not installed.version:
        text = f"no CUDA here ({why}): engines with their pool in host memory are served"
        return Finding(Level.NOTE, "GPUs", text)
    return Finding(
        Level.ERROR,
        "GPUs",
        f"the NVIDIA driver {installed.version} is there, but no GPU can be used: {why}",
        f"for CUDA 12 {install('cupy-cuda12')}, for CUDA 13 {install('cupy-cuda13')}; containers "
        "need docker run --gpus",
    )


def seen(device: Mapping[str, Any], numa_node: int | None) -> Finding:
    """One device as the driver shows it.

    Args:
        device: as the probe lists it.
        numa_node: nearest to it, or None where that is not known.
    """
    size = settings.format_size
    near = "NUMA node unknown" if numa_node is None else f"NUMA node {numa_node}"
    total, free = size(device["total_bytes"]), size(device["free_bytes"])
    text = f"{device['name']}, {total}, {free} free, {near}"
    return Finding(Level.OK, str(device["label"]), text)


def placing(label: str, numa_node: int | None, nodes: numa.Nodes) -> list[Finding]:
    """Whether memory can be placed near a device; tried, and undone.

    Args:
        label: names the device.
        numa_node: nearest to it, or None where that is not known.
        nodes: of the machine; with one there is nothing to say.
    """
    if len(nodes) < 2:
        return []
    if numa_node is None:
        text = f"nobody knows to which of {len(nodes)} NUMA nodes it is near: nothing is placed"
        return [Finding(Level.NOTE, label, text)]
    with numa.near(numa_node, nodes) as placed:
        is_placed, has_policy = bool(placed), placed.has_policy
    if not is_placed:
        text = f"memory cannot be placed on NUMA node {numa_node}: what it copies may lie far away"
        advice = "docker run --cap-add SYS_NICE, CPUs of all nodes, no numactl of your own"
        return [Finding(Level.WARNING, label, text, advice)]
    how = "by memory policy" if has_policy else "by CPUs alone (set_mempolicy is forbidden)"
    return [Finding(Level.OK, label, f"memory can be placed on NUMA node {numa_node} {how}")]


def tried(label: str, answer: Mapping[str, Any]) -> list[Finding]:
    """What came of the trials on one device.

    Args:
        label: names the device.
        answer: of ``share``.
    """
    if answer["error"]:
        return [Finding(Level.ERROR, label, f"nothing could be tried: {answer['error']}")]
    steps: Mapping[str, Mapping[str, Any]] = answer["steps"]
    if steps["allocate"]["error"]:
        why = f"cannot be written: {steps['allocate']['error']}"
        return [Finding(Level.ERROR, label, why)]
    return [*_sharing(label, steps), *_loading(label, steps)]


def _sharing(label: str, steps: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    if label.startswith("MIG-"):
        text = f"a MIG instance, for which no copier is started: {_RING}"
        return [Finding(Level.NOTE, label, text)]
    failed = next((name for name in ("export", "open") if steps[name]["error"]), "")
    if failed:
        text = f"sharing by handle: {failed} failed ({steps[failed]['error']}); {_RING}"
        return [Finding(Level.WARNING, label, text, _CONTAINERS)]
    found = [Finding(Level.OK, label, "sharing by handle: another process read 1 MiB as written")]
    taken = settings.format_size(int(steps["open"]["process_bytes"]))
    found.append(
        Finding(Level.NOTE, label, f"that process took {taken} of the GPU, a copier will too")
    )
    return found


def _loading(label: str, steps: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    pin, load = steps["pin"], steps["load"]
    if pin["error"]:
        text = f"page-locking failed ({pin['error']}): nothing can be loaded into its memory"
        advice = "raise ulimit -l (LimitMEMLOCK=infinity, docker run --ulimit memlock=-1)"
        return [Finding(Level.ERROR, label, text, advice)]
    kind = "read-only" if pin["read_only"] else "writable by the device, read-only is not supported"
    rate = float(pin["took_s"]) * (1 << 30) / int(pin["bytes"])
    size = settings.format_size(int(pin["bytes"]))
    text = f"page-locking: {size}, {kind}, {rate:.2f} s per GiB"
    found = [Finding(Level.OK if pin["read_only"] else Level.NOTE, label, text)]
    if load["error"]:
        found.append(Finding(Level.ERROR, label, f"loading: {load['error']}"))
    else:
        found.append(Finding(Level.OK, label, "loading: 1 MiB came through as written"))
    return found
