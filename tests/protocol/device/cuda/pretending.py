"""What scenarios on the pretended driver share: its own functions, a bound device, a stream."""

from __future__ import annotations

import ctypes
import os
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from protocol.device.backends import visible_devices
from protocol.device.cuda.backend import CudaDevice
from protocol.device.interface import (
    Direction,
)

TO_DEVICE = Direction.TO_DEVICE

PRETENDED: Any = ctypes.CDLL(os.path.join(os.environ.get("PRETENDED", ""), "libcuda.so.1"))
PRETENDED.pretend_log.restype = ctypes.c_char_p
PRETENDED.pretend_memory.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int]


def log() -> list[str]:
    """The calls since it was last asked."""
    text: bytes = PRETENDED.pretend_log()
    PRETENDED.pretend_clear()
    return text.decode().splitlines()


def bound() -> CudaDevice:
    """Device 0, bound, its log empty."""
    device = visible_devices()[0]
    device.bind()
    log()
    return cast(CudaDevice, device)


def bytes_at(address: int, num_bytes: int) -> NDArray[np.uint8]:
    """What lies in pretended device memory."""
    return np.frombuffer(
        memoryview((ctypes.c_uint8 * num_bytes).from_address(address)), dtype=np.uint8
    )


class Engine:
    """What an engine hands over as its stream."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number
