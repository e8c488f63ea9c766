"""Step ``footprint``: device memory that the server, its copier and the adapter take."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from protocol.device.interface import MemoryKind
from tests.adapter.enginerig import launched
from tests.adapter.hostlike import tokens
from tests.gpu.deaths import copier_bytes
from tests.gpu.ground import Ground
from tests.gpu.rig import HANDLE, DeviceRig, PoolKind
from tests.slow.figure import Figure

SLACK_BYTES = 2 << 20
"""The driver gives memory out in pieces of this size."""


def engine_bytes(ground: Ground, memory: MemoryKind) -> tuple[int, int]:
    """What goes when one engine registers, saves and loads, its pool left out.

    Returns:
        Bytes that went, and bytes that the copier says it took.
    """
    with TemporaryDirectory(prefix="kvk-") as place, launched("--l1-size", "64M") as server:
        rig = DeviceRig(server.url, Path(place) / "m", ground, PoolKind(memory=memory))
        try:
            rig.finish()
            before = ground.device.memory().free_bytes
            rig.register()
            rig.run_saved(tokens(41))
            assert rig.run(tokens(41)).offered == 40
            rig.check_way()
            rig.finish()
            return before - ground.device.memory().free_bytes, copier_bytes(server)
        finally:
            rig.close()


def measure(ground: Ground, is_quick: bool) -> dict[str, Figure]:
    """Looks at the device's free memory before and after; nobody else may use the device."""
    before = ground.device.memory().free_bytes
    with launched("--l1-size", "64M"):
        server = before - ground.device.memory().free_bytes
    # Through a ring there is no copier on the device: what went is the adapter's.
    adapter, _ = engine_bytes(ground, MemoryKind.VIRTUAL)
    both, told = engine_bytes(ground, MemoryKind.DEVICE)
    mib = 1 << 20
    return {
        "copier's pool shared by": Figure(HANDLE),
        "server, main process, MiB": Figure(
            round(server / mib, 1), "0", abs(server) <= SLACK_BYTES
        ),
        "adapter, MiB": Figure(round(adapter / mib, 1)),
        "copier, MiB": Figure(round((both - adapter) / mib, 1)),
        "copier as STATS has it, MiB": Figure(round(told / mib, 1)),
    }
