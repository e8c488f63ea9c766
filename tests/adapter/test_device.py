"""The device that is captured where the pool is registered, and entered in our own threads."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapter.device import capture_device
from protocol.device.interface import DeviceError
from tests.adapter.gpu import simulated


class FakeCuda:
    """``torch.cuda``: as in CUDA, each thread has a current device of its own, at first 0."""

    def __init__(self, is_initialized: bool) -> None:
        self._is_initialized = is_initialized
        self._current = threading.local()

    def is_initialized(self) -> bool:
        return self._is_initialized

    def current_device(self) -> int:
        assert self._is_initialized, "asking would begin CUDA"
        return getattr(self._current, "device", 0)

    def set_device(self, device: int) -> None:
        assert self._is_initialized, "setting would begin CUDA"
        self._current.device = device


def test_a_thread_of_ours_works_on_the_engines_device() -> None:
    cuda = FakeCuda(True)
    cuda.set_device(3)
    enter = capture_device(modules={"torch": SimpleNamespace(cuda=cuda)})
    seen = []

    def run() -> None:
        seen.append(cuda.current_device())
        enter()
        seen.append(cuda.current_device())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(5)
    assert seen == [0, 3]


def test_without_cuda_nothing_is_begun() -> None:
    capture_device(modules={})()
    capture_device(modules={"torch": SimpleNamespace()})()
    capture_device(modules={"torch": SimpleNamespace(cuda=FakeCuda(False))})()


def test_the_pools_device_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with simulated(monkeypatch, tmp_path) as gpu:
        cuda = FakeCuda(True)
        enter = capture_device(gpu.seam, {"torch": SimpleNamespace(cuda=cuda)})
        failures: list[Exception] = []

        def work() -> None:
            try:
                with pytest.raises(DeviceError):  # a new thread is on no device of ours
                    gpu.device.create_stream()
                enter()
                gpu.device.create_stream()
            except Exception as error:  # noqa: BLE001 - told below
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(10)
        assert not failures
