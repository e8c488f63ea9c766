"""Step ``hooks``: how long each hook keeps the engine's thread when 32k tokens are loaded.

Copies of a load are queued by ``start_load_kv``, so its time grows with the pages; what queueing
one page takes is measured apart, with pages that do not touch.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from protocol.device.interface import Direction
from tests.adapter.enginerig import launched
from tests.gpu.bulk import BulkRig
from tests.gpu.ground import Ground, is_large
from tests.gpu.rig import PoolKind
from tests.slow.figure import Figure

BLOCK_TOKENS = 32
MAX_HOOK_MS = 0.5
MAX_QUEUE_US = 2.0
JUDGED = ("bind_connector_meta", "start_load_kv", "wait_for_save", "get_finished")
"""The hooks of an iteration with a load. The others hash tokens or wait for the server's answer."""


def queue_us(rig: BulkRig, rounds: int) -> float:
    """Time to queue one page on the engine's stream, µs, median of rounds; no two pages touch."""
    pages = sorted(rig.targets)[: 2 * rig.num_rows : 2]
    np.random.default_rng(1).shuffle(pages)
    times = []
    for _ in range(rounds):
        _, queue = rig.move(pages, Direction.TO_HOST)
        begun_s = time.perf_counter()
        queue()
        times.append((time.perf_counter() - begun_s) / len(pages) * 1e6)
        rig.finish()
    return statistics.median(times)


def measure(ground: Ground, is_quick: bool) -> dict[str, Figure]:
    """Loads one prompt again and again."""
    has_room = is_large(ground)
    page_bytes, blocks = (256 << 10, 1024) if has_room else (16 << 10, 128)
    rounds = 5 if is_quick or not has_room else 25
    size = f"{max(2 * page_bytes * blocks, 64 << 20) >> 20}M"
    kind = PoolKind(page_bytes=page_bytes, block_tokens=BLOCK_TOKENS)
    with TemporaryDirectory(prefix="kvk-") as place, launched("--l1-size", size) as server:
        rig = BulkRig(server.url, Path(place) / "m", ground, kind, blocks).register()
        try:
            prompt = rig.prompt(1)
            rig.save(prompt)
            rig.await_server()
            rig.load(prompt)  # the first one finds caches cold
            times = [rig.load(prompt).hooks_s for _ in range(rounds)]
            assert rig.num_wrong_pages() == 0
            per_page_us = queue_us(rig, rounds)
        finally:
            rig.close()
    figures = {
        "tokens loaded": Figure(blocks * BLOCK_TOKENS),
        "queueing one page, us": Figure(
            round(per_page_us, 2), f"<= {MAX_QUEUE_US}", per_page_us <= MAX_QUEUE_US
        ),
    }
    for name in times[0]:
        median_ms = statistics.median(one[name] for one in times) * 1e3
        figures[f"{name}, ms p50"] = Figure(round(median_ms, 3))
        if name in JUDGED:
            room_ms = MAX_HOOK_MS
            if name == "start_load_kv":
                room_ms += blocks * MAX_QUEUE_US / 1e3
            target = f"<= {room_ms:.2f}"
            figures[f"{name}, ms p50"] = Figure(round(median_ms, 3), target, median_ms <= room_ms)
    return figures
