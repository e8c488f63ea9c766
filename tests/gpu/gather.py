"""Batches of many small pieces, which a kernel copies: ``python -m tests.gpu.gather GROUND``.

Pieces of odd lengths at odd places, both ways, compared byte by byte; what lies between them must
not change. Exit code 1 if a byte is wrong. Runs in: a process of its own, under
``compute-sanitizer`` on a GPU.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing

import numpy as np

from protocol.device.interface import Batch, Direction
from tests.gpu.ground import Ground, Way, finish, ground_for

NUM_PIECES = 1000
LARGEST = 700
GAP = 48
FILL = 0x5A


def pieces(seed: int) -> tuple[Batch, int]:
    """Copies between two buffers, by offsets; and the length that both must have."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, LARGEST, NUM_PIECES)
    sizes[:: NUM_PIECES // 50] = 16 * (1 + sizes[:: NUM_PIECES // 50] // 16)
    places = []
    for _ in range(2):
        gaps = rng.integers(0, GAP, NUM_PIECES)
        order = rng.permutation(NUM_PIECES)
        begins = np.empty(NUM_PIECES, dtype=np.int64)
        begins[order] = np.cumsum(sizes[order] + gaps) - sizes[order]
        places.append(begins)
    return Batch(places[0], places[1], sizes.astype(np.int64)), NUM_PIECES * (LARGEST + GAP)


def num_wrong(ground: Ground, seed: int, direction: Direction) -> int:
    """Copies one batch, and counts wrong bytes of the whole target."""
    device = ground.device
    batch, num_bytes = pieces(seed)
    source = np.random.default_rng(seed + 1).integers(0, 256, num_bytes, dtype=np.uint8)
    wanted = np.full(num_bytes, FILL, dtype=np.uint8)
    for target, begin, size in zip(batch.targets, batch.sources, batch.sizes, strict=True):
        wanted[target : target + size] = source[begin : begin + size]
    stream = device.create_stream()

    def whole(target: int, begin: int, way: Direction) -> None:
        numbers = (np.array([number], dtype=np.int64) for number in (target, begin, num_bytes))
        device.copy(stream, Batch(*numbers), way)
        finish(device, stream)

    with (
        closing(device.allocate(num_bytes)) as here,
        closing(device.pinned_buffer(num_bytes)) as there,
    ):
        is_load = direction is Direction.TO_DEVICE
        there.view[:] = FILL if is_load else source
        whole(here.address, there.address, Direction.TO_DEVICE)
        there.view[:] = source if is_load else FILL
        to, at = (here, there) if is_load else (there, here)
        moved = Batch(batch.targets + to.address, batch.sources + at.address, batch.sizes)
        device.copy(stream, moved, direction)
        finish(device, stream)
        if is_load:
            whole(there.address, here.address, Direction.TO_HOST)
        return int((there.view != wanted).sum())


def main(arguments: list[str]) -> int:
    """Some batches in both directions, by the copy engine and by the kernel."""
    ground = ground_for(arguments[0])
    wrong = 0
    for way in Way:
        ground.by(way)
        wrong += sum(num_wrong(ground, seed, where) for seed in range(2) for where in Direction)
    ground.synchronize()
    print(f"wrong bytes: {wrong}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
