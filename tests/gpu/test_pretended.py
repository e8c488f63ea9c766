"""The steps on the CUDA backend itself, with NVIDIA's own bindings and a driver that is pretended.

All work of that driver is done at once, so nothing is shown of order; but every call goes through
the real bindings and arrives as C, in the engine, in the copier and in whoever opens memory. Its
memory of a device is no ordinary memory to this process, as on a GPU.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.gpu import __main__ as runner
from tests.protocol.device.cuda import pretended
from tests.wire.process import ROOT

SOURCE = ROOT / "tests/gpu/pretended_gpu.cpp"


@functools.cache
def folder() -> Path:
    """Of the built ``libcuda.so.1``; built again when a source has changed."""
    plain = pretended.folder()  # skips without a compiler; in CI that is a failure
    state = hashlib.sha256(SOURCE.read_bytes() + plain.name.encode()).hexdigest()[:16]
    home = ROOT / "build" / f"pretended-gpu-{state}"
    library = home / "libcuda.so.1"
    if not library.exists():
        home.mkdir(parents=True, exist_ok=True)
        unfinished = home / f"unfinished-{id(home)}"
        includes = [f"-I{source.parent}" for source in pretended.SOURCES]
        command = ["g++", "-std=c++17", "-O1", "-Wall", "-shared", "-fPIC", "-pthread", *includes]
        subprocess.run(
            [*command, str(SOURCE), "-o", str(unfinished), "-ldl"], check=True, timeout=120
        )
        unfinished.replace(library)  # whole or not at all: others may build at the same time
    return home


@pytest.mark.parametrize(
    "name", ["roundtrip", "torture", "deaths", "rates", "hooks", "pinning", "sanitizer"]
)
def test_the_step_works_on_a_pretended_driver(
    name: str, shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended.must_have_bindings()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder()))
    monkeypatch.setenv("PRETENDED_GPU", str(shm_dir))
    monkeypatch.delenv("KVKEEP_SIMULATED_CUDA", raising=False)
    ended = runner.run(name, "cuda", ["--quick", "--seed", "7"], 110.0)
    assert ended["held"], ended["said"]
