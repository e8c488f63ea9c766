"""A device's free memory, name and compute mode, asked without a context of ours on the device.

The driver's own question needs a context, which takes hundreds of MiB: who wants to know what his
context takes has to ask before there is one. NVIDIA's management library (NVML) comes with the
driver. Source: NVML API reference, ``nvmlDeviceGetHandleByUUID``, ``nvmlDeviceGetMemoryInfo``,
``nvmlDeviceGetComputeMode``.

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
PROHIBITED = 2
"""Compute mode: no process may use the device."""
EXCLUSIVE = 3
"""Compute mode: one process at a time may."""


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
    _, handle = _find(library, uuid)
    memory = _Memory()
    if handle is None or library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
        return None
    return int(memory.free), int(memory.total)


def device_name(uuid: bytes, library: Any = None) -> str:
    """A device as the driver's tools name it, which is what ``CUDA_VISIBLE_DEVICES`` takes.

    Args:
        uuid: 16 bytes.
        library: NVML, loaded and begun; this machine's unless given.

    Returns:
        ``MIG-…`` for an instance of a GPU that NVML knows as that, else ``GPU-…``.
    """
    library = library or _library(_LIBRARY)
    name = None if library is None else _find(library, uuid)[0]
    return name or f"{_PREFIXES[0]}{uuids.UUID(bytes=uuid)}"


def compute_mode(uuid: bytes, library: Any = None) -> int | None:
    """Who may use a device: ``PROHIBITED``, ``EXCLUSIVE``, 0 for all; None where nobody says.

    Args:
        uuid: 16 bytes.
        library: as for ``device_name``.
    """
    library = library or _library(_LIBRARY)
    if library is None:
        return None
    _, handle = _find(library, uuid)
    mode = ctypes.c_int()
    if handle is None or library.nvmlDeviceGetComputeMode(handle, ctypes.byref(mode)) != 0:
        return None
    return mode.value


def _find(library: Any, uuid: bytes) -> tuple[str | None, ctypes.c_void_p | None]:
    """A device's name and handle; two times None where it is not known."""
    handle = ctypes.c_void_p()
    for prefix in _PREFIXES:
        name = f"{prefix}{uuids.UUID(bytes=uuid)}"
        if library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) == 0:
            return name, handle
    return None, None


@functools.cache
def _library(name: str) -> Any:
    try:
        library = ctypes.CDLL(name)
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):  # no such file; not that library
        return None
