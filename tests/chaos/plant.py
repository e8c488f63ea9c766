"""Faults planted on purpose, to see that a run finds them.

``flip`` changes bytes of chunks that lie in the arena, as a stray writer would: what is loaded from
then on is wrong. Must not know: players. One thread.
"""

from __future__ import annotations

import mmap
import random
import threading
from pathlib import Path
from typing import Final

_EVERY_S: Final = 0.5
_MIN_EXTENT_BYTES: Final = 64 << 10
_FLIPS: Final = 40
_FLIP_BYTES: Final = 64


class Flipper(threading.Thread):
    """Flips bytes in the second half of each extent, where slots are and no header.

    Args:
        arena_dir: of the server.
        seed: of the places.
    """

    def __init__(self, arena_dir: Path, seed: int) -> None:
        super().__init__(name="flipper", daemon=True)
        self._arena_dir = arena_dir
        self._rng = random.Random(f"flips {seed}")
        self._over = threading.Event()
        self.num_flips = 0

    def run(self) -> None:
        """Until told to end."""
        while not self._over.wait(_EVERY_S):
            for path in sorted(self._arena_dir.rglob("*")):
                try:
                    self.num_flips += self._flip(path)
                except (OSError, ValueError):
                    continue  # it went meanwhile

    def _flip(self, path: Path) -> int:
        if not path.is_file() or path.stat().st_size < _MIN_EXTENT_BYTES:
            return 0
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            for _ in range(_FLIPS):
                at = self._rng.randrange(len(memory) // 2, len(memory) - _FLIP_BYTES)
                old = memory[at : at + _FLIP_BYTES]
                memory[at : at + _FLIP_BYTES] = bytes(byte ^ 0xFF for byte in old)
        return _FLIPS

    def end(self) -> None:
        """Ends; ``join`` waits for it."""
        self._over.set()
