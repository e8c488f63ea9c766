"""An engine's visit to a server that somebody else started: saves pages, or looks for them.

``python -m tests.deploy.visit save|look PATH SEED COUNT`` derives keys and pages from SEED, so that
another process finds what the first saved, and prints how many chunks the server holds. Knows the
wire alone. Runs in a process of its own, as a user of its own.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
from numpy.typing import NDArray

from tests.wire.client import Engine


def keys_of(seed: str, count: int) -> list[bytes]:
    """Keys of 16 bytes."""
    return [hashlib.sha256(f"{seed}.{n}".encode()).digest()[:16] for n in range(count)]


def page_of(key: bytes, page_bytes: int) -> NDArray[np.uint8]:
    """What is saved under a key."""
    return np.resize(np.frombuffer(key, np.uint8), page_bytes)


def save(engine: Engine, keys: list[bytes]) -> int:
    """Saves a page for each key; how many chunks are held then."""
    for page, key in zip(engine.pages, keys, strict=False):
        page[:] = page_of(key, engine.page_bytes)
    return engine.save(keys, list(range(len(keys))))


def look(engine: Engine, keys: list[bytes]) -> int:
    """Chunks that are there, each of them as it was saved.

    Raises:
        AssertionError: bytes are other ones.
    """
    found = engine.lookup(keys)
    if not found.ready:
        return 0
    for row, key in zip(engine.read(found.lease, found.ready), keys, strict=False):
        assert (row == page_of(key, engine.page_bytes)).all(), key.hex()
    engine.release(found.lease)
    return found.ready


def main(what: str, path: str, seed: str, count: str) -> None:
    """Connects, registers, does it and prints the number."""
    with Engine(f"ipc://{path}", f"{path}.side") as engine:
        engine.register()
        print({"save": save, "look": look}[what](engine, keys_of(seed, int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
