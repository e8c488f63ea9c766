import ctypes
from pathlib import Path
from typing import Any

import pytest

from protocol.device.cuda import nvml

UUID = bytes(range(16))
NAME = "00010203-0405-0607-0809-0a0b0c0d0e0f"


class Library:
    """Answers as NVML does for one name."""

    def __init__(self, name: str, memory_status: int = 0, mode: int | None = 0) -> None:
        self.name = name.encode()
        self.memory_status = memory_status
        self.mode = mode

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:  # noqa: N802
        if name != self.name:
            return 6
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = 0xABC
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:  # noqa: N802
        assert handle.value == 0xABC
        places = ctypes.cast(memory, ctypes.POINTER(ctypes.c_ulonglong))
        places[0], places[1], places[2] = 100, 30, 70  # total, free, used
        return self.memory_status

    def nvmlDeviceGetComputeMode(self, handle: ctypes.c_void_p, mode: Any) -> int:  # noqa: N802
        assert handle.value == 0xABC
        if self.mode is None:
            return 3  # not supported
        ctypes.cast(mode, ctypes.POINTER(ctypes.c_int))[0] = self.mode
        return 0


@pytest.mark.parametrize("prefix", ["GPU-", "MIG-"])
def test_a_device_is_asked_by_its_name(prefix: str) -> None:
    assert nvml.ask(Library(prefix + NAME), UUID) == (30, 100)


def test_unknown_devices_and_failures_say_nothing() -> None:
    assert nvml.ask(Library("GPU-of-others"), UUID) is None
    assert nvml.ask(Library("GPU-" + NAME, memory_status=999), UUID) is None


def test_a_library_that_is_not_there_or_another_says_nothing() -> None:
    assert nvml._library("libnvidia-ml-of-nobody.so.1") is None
    assert nvml._library("libc.so.6") is None


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_without_nvml_nothing_is_said() -> None:
    assert nvml.device_memory(UUID) is None


@pytest.mark.parametrize("prefix", ["GPU-", "MIG-"])
def test_a_device_has_the_name_that_nvml_knows(prefix: str) -> None:
    assert nvml.device_name(UUID, Library(prefix + NAME)) == prefix + NAME


def test_a_device_that_nvml_does_not_know_is_taken_for_a_whole_one() -> None:
    assert nvml.device_name(UUID, Library("GPU-of-others")) == "GPU-" + NAME
    assert nvml.compute_mode(UUID, Library("GPU-of-others")) is None


def test_who_may_use_a_device() -> None:
    for mode in (0, nvml.PROHIBITED, nvml.EXCLUSIVE, None):
        assert nvml.compute_mode(UUID, Library("MIG-" + NAME, mode=mode)) == mode
