"""Step ``ways``: from which size on the copy engine moves pieces faster than the gather kernel.

What is decided by it: ``Thresholds.kernel_bytes`` of ``protocol.device.cuda.copies``.
"""

from __future__ import annotations

import statistics
import time
from contextlib import closing

import numpy as np

from protocol.device.interface import Batch, Direction
from tests.gpu.ground import Ground, Way, finish, is_large
from tests.slow.figure import Figure

SIZES = (512, 2 << 10, 8 << 10, 32 << 10, 128 << 10)
TOTAL_BYTES = 64 << 20
MAX_PIECES = 8192


def seconds(
    ground: Ground, size: int, total_bytes: int, direction: Direction, rounds: int
) -> dict[Way, float]:
    """Time of one batch by each way, median of rounds; pieces are apart and in no order."""
    device = ground.device
    stream = device.create_stream()
    count = min(MAX_PIECES, total_bytes // size)
    rng = np.random.default_rng(3)
    offsets = [rng.permutation(count).astype(np.int64) * (size + 64) for _ in range(2)]
    found: dict[Way, float] = {}
    with (
        closing(device.allocate(count * (size + 64))) as here,
        closing(device.pinned_buffer(count * (size + 64))) as there,
    ):
        ends = (here.address + offsets[0], there.address + offsets[1])
        targets, sources = ends if direction is Direction.TO_DEVICE else ends[::-1]
        batch = Batch(targets, sources, np.full(count, size, dtype=np.int64))
        for way in Way:
            ground.by(way)
            times = []
            for _ in range(rounds + 1):
                begun_s = time.perf_counter()
                device.copy(stream, batch, direction)
                finish(device, stream)
                times.append(time.perf_counter() - begun_s)
            found[way] = statistics.median(times[1:])
    ground.by(None)
    return found


def measure(ground: Ground, is_quick: bool) -> dict[str, Figure]:
    """Both ways and both directions, for each size."""
    has_room = is_large(ground)
    total_bytes, rounds = (TOTAL_BYTES, 3 if is_quick else 9) if has_room else (1 << 20, 1)
    figures: dict[str, Figure] = {}
    for direction in Direction:
        faster = 0
        for size in SIZES:
            times = seconds(ground, size, total_bytes, direction, rounds)
            for way, taken_s in times.items():
                count = min(MAX_PIECES, total_bytes // size)
                title = f"{direction.value}, pieces of {size} bytes, {way.value}: us a piece"
                figures[title] = Figure(round(taken_s / count * 1e6, 3))
            if times[Way.KERNEL] < times[Way.ENGINE]:
                faster = size
        figures[f"{direction.value}, the kernel is faster up to, bytes"] = Figure(faster)
    return figures
