"""Finds the device that memory belongs to, without beginning CUDA where nobody did.

Must not know: pages, slots, requests, sockets. Any thread.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, cast

from protocol.device.interface import UUID_BYTES, Device, DeviceError, MemoryKind
from protocol.device.simulated.settings import FOLDER, index_of

if TYPE_CHECKING:
    from protocol.device.simulated.driver import Driver


def device_of(device_type: str, address: int) -> Device | None:
    """The device that an engine's memory belongs to; for the adapter.

    Args:
        device_type: as the tensor says, e.g. ``cuda`` or ``cpu``; empty where there is no tensor.
        address: first byte of the memory.

    Returns:
        None for plain host memory.

    Raises:
        DeviceError: the memory says it is CUDA's, and CUDA cannot be used here.
    """
    driver = _simulated()
    if driver is not None:
        place = driver.memory.find(address)
        if place is not None and place.kind is not MemoryKind.HOST:
            return driver.device(place.owner)
    if device_type == "cuda":
        return cast("Device | None", _cuda().device_of(address))
    return None


def device_by_uuid(uuid: bytes) -> Device:
    """A device by its name; for the process that serves this one device.

    Args:
        uuid: 16 bytes.

    Raises:
        DeviceError: there is no such device here.
    """
    index = index_of(uuid)
    if index is not None:
        driver = _simulated()
        if driver is None:
            raise DeviceError("cudaErrorNoDevice", "a simulated device that is not switched on")
        return driver.device(index)
    if len(uuid) != UUID_BYTES:
        raise DeviceError("cudaErrorInvalidDevice", f"a device's uuid of {len(uuid)} bytes")
    if os.environ.get(FOLDER):
        what = f"{FOLDER} is set, so devices are simulated; of them none has the uuid {uuid.hex()}"
        raise DeviceError("cudaErrorNoDevice", what)
    return cast(Device, _cuda().device_by_uuid(uuid))


def visible_devices() -> list[Device]:
    """All devices this process can use; begins CUDA where no devices are simulated.

    Raises:
        DeviceError: there is no driver or no package for it; the text says which.
    """
    driver = _simulated()
    if driver is not None:
        return list(driver.devices())
    return list(_cuda().visible_devices())


def _simulated() -> Driver | None:
    """The simulated driver; None where it is not switched on, and then nothing of it is loaded."""
    if not os.environ.get(FOLDER):
        return None
    module = importlib.import_module("protocol.device.simulated.driver")
    return cast("Driver | None", module.current())


def _cuda() -> Any:
    """Loaded only here, so that nothing of CUDA is imported by who has no use for it."""
    return importlib.import_module("protocol.device.cuda.backend")
