"""Which NUMA node of the machine a device hangs on.

Linux says it of each PCI device. Source: the kernel's documentation of sysfs, ``numa_node`` under
``/sys/bus/pci/devices``.

Must not know: CUDA, what is placed there. Any thread.
"""

from __future__ import annotations

import re
from pathlib import Path

_PLACE = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_MOST_NODES = 1024
"""Linux is built for no more."""


def node_of(pci_bus_id: str, sysfs: Path = Path("/sys")) -> int | None:
    """The node nearest to a device.

    Args:
        pci_bus_id: as drivers write it, e.g. ``0000:3B:00.0``; some write eight digits of domain.
        sysfs: where sysfs is mounted.

    Returns:
        Its number; None where the kernel does not know, or does not say.
    """
    place = _PLACE.fullmatch(pci_bus_id.strip())
    if place is None:
        return None
    name = f"{int(place[1], 16):04x}:{place[2].lower()}"
    try:
        number = int((sysfs / "bus/pci/devices" / name / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return number if 0 <= number < _MOST_NODES else None
