"""Which libraries a live process has mapped.

Must not know: whose process it is. Reads ``/proc``; any thread.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

HEAVY: Final = re.compile(r"torch|cupy|cuda|cublas|cudnn|nccl|nvidia|nvrtc", re.IGNORECASE)
"""Names of libraries that a server's process has no use for."""

_LIBRARY: Final = re.compile(r"\.so(?:\.[0-9.]+)?$")


def process_tree(pid: int) -> list[int]:
    """A process and all of its descendants.

    Args:
        pid: A live process.

    Returns:
        Process ids, ``pid`` first.
    """
    found, pending = [], [pid]
    while pending:
        current = pending.pop()
        found.append(current)
        for children in Path(f"/proc/{current}/task").glob("*/children"):
            pending += [int(child) for child in children.read_text().split()]
    return found


def libraries(pid: int) -> list[str]:
    """Shared libraries mapped by a process.

    Args:
        pid: A live process.

    Returns:
        Paths, sorted, each once.
    """
    paths = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and _LIBRARY.search(path[0]):
            paths.add(path[0])
    return sorted(paths)


def heavy_libraries(paths: list[str]) -> list[str]:
    """Those that belong to torch or CUDA, by their name or the package they lie in.

    Args:
        paths: Library paths.

    Returns:
        The offending ones.
    """
    return [path for path in paths if HEAVY.search(_telling_part(path))]


def _telling_part(path: str) -> str:
    # Folders above the packages are the user's: a checkout may be called anything.
    for packages in ("/site-packages/", "/dist-packages/"):
        if packages in path:
            return path.rpartition(packages)[2]
    return Path(path).name
