"""A device's free memory, asked without a context of ours on the device.

The driver's own question needs a context, which takes hundreds of MiB: who wants to know what his
context takes has to ask before there is one. NVIDIA's management library (NVML) comes with the
driver. Source: NVML API reference, ``nvmlDeviceGetHandleByUUID``, ``nvmlDeviceGetMemoryInfo``.

Must not know: CUDA. Any thread.
"""

from __future__ import annotations

import ctypes
import functools
import uuid as uuids
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_PREFIXES = ("GPU-", "MIG-")
"""A MIG instance has a name of its own."""


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``, bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def device_memory(uuid: bytes) -> tuple[int, int] | None:
    """Free and total bytes of a device; None where NVML cannot say.

    Args:
        uuid: 16 bytes.
    """
    library = _library(_LIBRARY)
    return None if library is None else ask(library, uuid)


def ask(library: Any, uuid: bytes) -> tuple[int, int] | None:
    """As ``device_memory``, of a library that is loaded and begun."""
    handle = ctypes.c_void_p()
    for prefix in _PREFIXES:
        name = f"{prefix}{uuids.UUID(bytes=uuid)}".encode()
        if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) == 0:
            break
    else:
        return None
    memory = _Memory()
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
        return None
    return int(memory.free), int(memory.total)


@functools.cache
def _library(name: str) -> Any:
    try:
        library = ctypes.CDLL(name)
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):  # no such file; not that library
        return None
