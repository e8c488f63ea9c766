"""Builds the pretended driver, and calls what it adds to CUDA's own functions."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
SOURCES = (HERE / "pretend_driver.cpp", ROOT / "protocol/device/cuda/data/gather.cu")


def must_have(what: str, is_there: bool) -> None:
    """Skips without it; in CI that is a failure."""
    if is_there:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have {what}")
    pytest.skip(f"no {what} on this machine")


def must_have_bindings() -> None:
    try:
        resources.files("cuda.bindings")
        is_there = True
    except ModuleNotFoundError:
        is_there = False
    must_have("cuda-bindings", is_there)


@functools.cache
def folder() -> Path:
    """Of the built ``libcuda.so.1``; built again when a source has changed."""
    must_have("g++", shutil.which("g++") is not None)
    state = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()[:16]
    home = ROOT / "build" / f"pretended-{state}"
    library = home / "libcuda.so.1"
    if not library.exists():
        home.mkdir(parents=True, exist_ok=True)
        unfinished = home / f"unfinished-{os.getpid()}"
        command = ["g++", "-std=c++17", "-O1", "-Wall", "-shared", "-fPIC", "-pthread"]
        include = f"-I{SOURCES[1].parent}"
        subprocess.run(
            [*command, include, str(SOURCES[0]), "-o", str(unfinished), "-ldl"],
            check=True,
            timeout=120,
        )
        unfinished.replace(library)  # whole or not at all: others may build at the same time
    return home


def functions() -> Any:
    """The pretended driver as C functions; not found by anything that looks for the real one."""
    loaded = ctypes.CDLL(str(folder() / "libcuda.so.1"))
    loaded.pretend_log.restype = ctypes.c_char_p
    loaded.pretend_memory.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int]
    loaded.pretend_run.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    return loaded


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a module in a process of its own, in which the bindings find the pretended driver."""
    must_have_bindings()
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder()), "PRETENDED": str(folder())}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
