import os
import subprocess
import sys

import pytest

from adapter.conformance.demo.libraries import heavy_libraries, libraries, process_tree


def test_own_libraries_are_seen() -> None:
    found = libraries(os.getpid())
    assert any("libc.so" in path for path in found)
    assert found == sorted(set(found))
    assert all(".so" in path.rpartition("/")[2] for path in found)


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "/v/lib/python3.11/site-packages/torch/lib/libc10.so",
        "/v/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "/usr/lib/python3/dist-packages/cupy/_core/core.cpython-311-x86_64-linux-gnu.so",
        "/opt/x/libcublasLt.so.12",
    ],
)
def test_heavy_libraries_are_recognised(path: str) -> None:
    assert heavy_libraries([path, "/usr/lib/libc.so.6"]) == [path]


@pytest.mark.parametrize(
    "path",
    [
        "/srv/cuda-project/torch/.venv/lib/python3.11/site-packages/zmq/backend/_zmq.abi3.so",
        "/srv/torch/libz.so.1",
    ],
)
def test_folders_of_the_user_are_not_held_against_a_library(path: str) -> None:
    assert heavy_libraries([path]) == []


def test_a_process_that_imports_torch_is_caught() -> None:
    pytest.importorskip("torch")
    code = "import torch; print('up', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    try:
        assert heavy_libraries(libraries(child.pid))
        assert child.pid in process_tree(os.getpid())
    finally:
        child.communicate("\n")
