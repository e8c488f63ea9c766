"""Step ``roundtrip``: what one engine saved, another loads, bit for bit, for each kind of pool."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from protocol.device.interface import MemoryKind
from tests.adapter.enginerig import SIZE, launched
from tests.adapter.hostlike import tokens
from tests.gpu.ground import Ground
from tests.gpu.rig import HANDLE, DeviceRig, PoolKind
from tests.slow.figure import Figure

KINDS = {
    "fp16, V1": PoolKind("float16", 2),
    "bf16, V1": PoolKind("bfloat16", 2, page_bytes=16384),
    "bf16, V2 in virtual memory": PoolKind("bfloat16", 2, MemoryKind.VIRTUAL),
    "fp8, V1": PoolKind("float8_e4m3fn", 1),
    "fp16, managed memory": PoolKind("float16", 2, MemoryKind.MANAGED),
}
LENGTHS = (9, 22, 40, 81, 120)


def prompts() -> list[list[int]]:
    """Some that begin alike and some that do not."""
    common = tokens(max(LENGTHS), seed=1)
    return [
        *(common[:length] for length in LENGTHS),
        *(common[: SIZE * 3] + tokens(length, seed=length) for length in LENGTHS),
    ]


def measure(ground: Ground, is_quick: bool) -> dict[str, Figure]:
    """Runs all kinds of pools.

    Raises:
        AssertionError: a byte was wrong, or what was saved was not offered.
    """
    figures = {}
    for name, kind in list(KINDS.items())[:: 2 if is_quick else 1]:
        way, num_loaded = one(ground, kind)
        figures[f"{name}: shared by"] = Figure(way)
        figures[f"{name}: pages loaded and compared"] = Figure(num_loaded)
    return figures


def one(ground: Ground, kind: PoolKind) -> tuple[str, int]:
    """Saves with one engine, loads with another whose pool is elsewhere.

    Returns:
        How the server read what was saved, and pages that were loaded and compared.
    """
    num_loaded = 0
    with TemporaryDirectory(prefix="kvk-") as name, launched("--l1-size", "64M") as server:
        folder = Path(name) / "m"
        first = DeviceRig(server.url, folder, ground, kind, num_pages=96).register()
        try:
            for prompt in prompts():
                first.run_saved(prompt)
            way = first.check_way()
            assert first.stats()["device_copiers"] == (way == HANDLE)
        finally:
            first.close()
        second = DeviceRig(server.url, folder, ground, kind, num_pages=128).register()
        try:
            for prompt in prompts():
                offered = second.run(prompt).offered
                assert offered == (len(prompt) - 1) // SIZE * SIZE, (offered, len(prompt))
                num_loaded += offered // SIZE
            second.check_nothing_leased()
        finally:
            second.close()
    return way, num_loaded
