"""What a plain copy does here: the figure that stores and retrieves are held against.

Purpose: copy the same pages between the same mappings as a store or a retrieve does, page by page
in the same order, with the two plain copies Python has: ``np.copyto`` and ``ctypes.memmove``. Both
release the GIL. Must not know: the server, the link. Runs in: the load generator's main thread.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Route:
    """Pages to copy, in order.

    Attributes:
        sources: uint8[page_bytes] each; may be read-only.
        targets: uint8[page_bytes] each, writable, as many.
    """

    sources: Sequence[Bytes]
    targets: Sequence[Bytes]

    @property
    def num_bytes(self) -> int:
        """Bytes one pass copies."""
        return sum(page.nbytes for page in self.sources)


def copyto_s(route: Route) -> float:
    """Times one pass with ``np.copyto``.

    Args:
        route: what to copy.

    Returns:
        Seconds.
    """
    pairs = list(zip(route.targets, route.sources, strict=True))
    copy = np.copyto
    began = time.perf_counter()
    for target, source in pairs:
        copy(target, source)
    return time.perf_counter() - began


def memmove_s(route: Route) -> float:
    """Times one pass with ``ctypes.memmove``.

    Args:
        route: what to copy.

    Returns:
        Seconds.
    """
    triples = [
        (target.ctypes.data, source.ctypes.data, source.nbytes)
        for target, source in zip(route.targets, route.sources, strict=True)
    ]
    move = ctypes.memmove
    began = time.perf_counter()
    for target_address, source_address, num_bytes in triples:
        move(target_address, source_address, num_bytes)
    return time.perf_counter() - began


#: The plain copies, by the name that the report uses.
METHODS: dict[str, Callable[[Route], float]] = {"copyto": copyto_s, "memmove": memmove_s}


def scratch_file(directory: Path, num_bytes: int) -> Bytes:
    """A shared mapping of a new file, of the same kind as an extent, and gone with its last view.

    Args:
        directory: on the same mount as the arena.
        num_bytes: length; allocated, not yet touched.

    Returns:
        uint8[num_bytes], writable.

    Raises:
        OSError: the mount has no room.
    """
    path = directory / f"scratch-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(path)
        os.posix_fallocate(fd, 0, num_bytes)
        mapping = mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    return np.frombuffer(mapping, dtype=np.uint8)


def pages_of(view: Bytes, page_bytes: int, order: Sequence[int]) -> list[Bytes]:
    """Views of single pages.

    Args:
        view: uint8[n], holding whole pages from byte 0 on.
        page_bytes: bytes per page.
        order: page numbers, in the order wanted.

    Returns:
        One uint8[page_bytes] view for each number.
    """
    return [view[page * page_bytes : (page + 1) * page_bytes] for page in order]
