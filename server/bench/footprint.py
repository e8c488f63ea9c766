"""What a server weighs, read from /proc.

Purpose: resident memory of its processes without the arena, and the libraries they have mapped.
Must not know: how servers are started, what is measured. Runs in: the benchmark's process.

Source: proc_pid_smaps(5), proc_pid_maps(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HEAVY = re.compile(
    r"torch|libcuda|libcudart|libcublas|libnvrtc|libnccl|cupy|tensorrt", re.IGNORECASE
)
"""Libraries that the server must not have mapped."""

_HEADER = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S{4} [0-9a-f]+ \S+ \d+ *(.*)$")
_POOL = "/memfd:kvkeep-pool"
_MIB = 1 << 20


@dataclass(frozen=True)
class Weight:
    """Resident memory of one process.

    Attributes:
        rss_bytes: resident, without arena and pools; pages shared with other processes in full.
        private_bytes: of those, what no other process shares.
        shared_kv_bytes: what was left out: resident pages of extents and pools.
    """

    rss_bytes: int
    private_bytes: int
    shared_kv_bytes: int


def weigh(smaps: str, arena_dir: str) -> Weight:
    """Adds up the mappings of a process, apart from KV memory.

    Args:
        smaps: content of ``/proc/PID/smaps``.
        arena_dir: folder of the extent files.

    Returns:
        The sums.
    """
    rss_bytes = private_bytes = shared_kv_bytes = 0
    is_kv = False
    for line in smaps.splitlines():
        header = _HEADER.match(line)
        if header:
            path = header.group(1)
            is_kv = path.startswith((arena_dir.rstrip("/") + "/", _POOL))
            continue
        name, _, rest = line.partition(":")
        if name not in ("Rss", "Private_Clean", "Private_Dirty"):
            continue
        num_bytes = int(rest.split()[0]) * 1024
        if is_kv:
            shared_kv_bytes += num_bytes if name == "Rss" else 0
        elif name == "Rss":
            rss_bytes += num_bytes
        else:
            private_bytes += num_bytes
    return Weight(rss_bytes, private_bytes, shared_kv_bytes)


def weight_of(pid: int, arena_dir: Path) -> Weight:
    """Weighs a live process.

    Args:
        pid: of a child of this process, so it cannot be another's meanwhile.
        arena_dir: folder of the extent files.

    Returns:
        Its resident memory.

    Raises:
        OSError: it has exited, or is another user's.
    """
    return weigh(Path(f"/proc/{pid}/smaps").read_text("utf-8", "replace"), str(arena_dir))


def heavy_libraries(maps: str) -> list[str]:
    """Names the mapped files that a server must not need.

    Args:
        maps: content of ``/proc/PID/maps``.

    Returns:
        File names, sorted, each once; empty when all is well.
    """
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count(" ") > 5}
    names = {os.path.basename(path) for path in paths if path.startswith("/")}
    return sorted(name for name in names if HEAVY.search(name))


def family(pid: int) -> list[int]:
    """A process and all its descendants.

    Args:
        pid: the first of them.

    Returns:
        Process ids, the given one first.
    """
    found = [pid]
    for parent in found:  # grows while it is walked
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
        except OSError:
            continue
        for task in tasks:
            try:
                children = (task / "children").read_text("ascii").split()
            except OSError:
                continue
            found += [int(child) for child in children if int(child) not in found]
    return found


def mib(num_bytes: int) -> float:
    """Bytes as MiB."""
    return num_bytes / _MIB


def total(weights: Iterable[Weight]) -> Weight:
    """Sums of several processes; pages that two of them share count twice."""
    listed = list(weights)
    return Weight(
        sum(weight.rss_bytes for weight in listed),
        sum(weight.private_bytes for weight in listed),
        sum(weight.shared_kv_bytes for weight in listed),
    )
