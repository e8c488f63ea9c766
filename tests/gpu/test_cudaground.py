"""What of the GPU's ground shows without a GPU: names of the bindings, kernels that compile."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

from protocol.device.cuda.copies import Copies, Thresholds
from protocol.device.cuda.kernel import GatherKernel
from protocol.device.interface import DeviceError
from tests.gpu import cudaground

driver: Any = pytest.importorskip("cuda.bindings.driver")
nvrtc: Any = pytest.importorskip("cuda.bindings.nvrtc")


def names_of(module: str) -> set[str]:
    """Attributes of a module that the source names."""
    tree = ast.parse(inspect.getsource(cudaground))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            if isinstance(owner, ast.Attribute) and owner.attr == f"_{module}":
                found.add(node.attr)
            if isinstance(owner, ast.Name) and owner.id == module:
                found.add(node.attr)
    return found


@pytest.mark.parametrize("module", ["driver", "nvrtc"])
def test_the_bindings_know_every_name(module: str) -> None:
    names = names_of(module)
    assert len(names) > 5
    there = {"driver": driver, "nvrtc": nvrtc}[module]
    assert [name for name in sorted(names) if not hasattr(there, name)] == []


def test_the_bindings_know_every_attribute() -> None:
    known = dir(driver.CUdevice_attribute)
    wanted = [f"CU_DEVICE_ATTRIBUTE_{name}" for name in cudaground.ATTRIBUTES]
    assert [name for name in wanted if name not in known] == []


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernels_compile(capability: int) -> None:
    assert len(cudaground.compile_source(capability)) > 1000


def test_a_kernel_that_is_wrong_is_refused_with_the_compilers_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cudaground, "SOURCE", "nonsense;")
    with pytest.raises(DeviceError, match="nonsense"):
        cudaground.compile_source(90)


def test_a_status_that_is_none_of_success_raises() -> None:
    assert cudaground.checked((driver.CUresult.CUDA_SUCCESS,), "x") == []
    assert cudaground.checked((driver.CUresult.CUDA_SUCCESS, 7), "x") == 7
    assert cudaground.checked((driver.CUresult.CUDA_SUCCESS, 7, 8), "x") == [7, 8]
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        cudaground.checked((driver.CUresult.CUDA_ERROR_INVALID_VALUE,), "x")


def test_a_way_is_forced_through_what_the_backend_has() -> None:
    nothing: Any = None
    made = Copies(nothing, nothing, nothing, nothing)
    assert made.thresholds == Thresholds()
    assert callable(GatherKernel.wait_until_made)
    assert isinstance(GatherKernel.failure, property)
