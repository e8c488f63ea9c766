"""Which device some memory is on, and how that memory was made.

Host memory has none, and a host whose pool is in host memory never gets to a driver: CUDA is asked
only about what is no ordinary memory of this process. The answer decides how pages are reached
(``pagememory``) and how the server may reach them (``sharing``).

Must not know: pages, the protocol's messages. Runs in: the main thread, at pool registration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.device.backends import device_of
from protocol.device.interface import Device, MemoryKind, Place

Find = Callable[[str, int], Device | None]
"""The device that an address of a tensor's device type belongs to; None for none."""

_KINDS: Final = (MemoryKind.DEVICE, MemoryKind.VIRTUAL, MemoryKind.MANAGED)


@dataclass(frozen=True)
class Located:
    """Memory of a device.

    Attributes:
        device: that owns it.
        place: what its first byte is.
    """

    device: Device
    place: Place


def locate(address: int, kind: str, find: Find = device_of) -> Located | None:
    """Finds the device of some memory.

    Args:
        address: first byte.
        kind: ``cpu``, ``cuda``, …; empty when nothing tells.
        find: asks the devices.

    Returns:
        None when no device of ours knows the memory: it is host memory, or out of reach.

    Raises:
        DeviceError: its device does not answer, or what it takes to ask is not installed.
    """
    device = find(kind, address)
    place = None if device is None else device.place(address)
    if device is None or place is None or place.kind not in _KINDS:
        return None
    return Located(device, place)
