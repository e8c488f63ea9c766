"""Prints which requirements its interpreter does not meet: ``python tests/gpu/lacking.py NAME``.

What a machine has counts by what works and not by who installed it: a package must be there in a
version that will do, and import. Runs in: a process of its own, on any Python, before anything is
installed; so it knows the standard library only.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys

MODULES = {"pyzmq": "zmq", "cuda-bindings": "cuda.bindings.driver"}
NVRTC = "nvidia-cuda-nvrtc"


def numbers(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: ``13.0.1rc2`` is (13, 0, 1)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def is_within(version: tuple[int, ...], bounds: str) -> bool:
    """Whether a version is within bounds such as ``>=12.8,<14``."""
    for sign, bound in re.findall(r"(>=|<)\s*([\d.]+)", bounds):
        if (version >= numbers(bound)) is not (sign == ">="):
            return False
    return True


def nvrtc_version() -> tuple[int, ...]:
    """Of the compiler library, wherever it came from."""
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    status, *version = nvrtc.nvrtcVersion()
    return tuple(version) if int(status) == 0 else ()


def is_met(requirement: str) -> bool:
    """Whether what is asked for is there and imports."""
    name, bounds = re.findall(r"^([\w-]+)(.*)$", requirement)[0]
    try:
        if name.startswith(NVRTC):
            return is_within(nvrtc_version(), bounds)
        importlib.import_module(MODULES.get(name, name))
        return is_within(numbers(importlib.metadata.version(name)), bounds)
    except Exception:  # noqa: BLE001 - whatever a broken package raises, it is of no use here
        return False


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        if not is_met(wanted):
            print(wanted)
