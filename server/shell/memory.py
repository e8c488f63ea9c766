"""How much memory an arena may take: machine, control group and file system, each by name.

Purpose: refuse an arena that the kernel would later punish with SIGBUS or the OOM killer (B37).
Must not know: settings. Runs in: the main thread, at start.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CGROUP_ROOT = "/sys/fs/cgroup"
#: v1 shows "no limit" as the largest multiple of a page.
_NO_LIMIT_BYTES = 1 << 60
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Room:
    """One bound on the arena's size.

    Attributes:
        name: what bounds it, for a person.
        free_bytes: what it leaves.
    """

    name: str
    free_bytes: int


def machine_room(meminfo: str = "/proc/meminfo") -> Room:
    """What the machine could give without swapping.

    Args:
        meminfo: file to read.

    Returns:
        MemAvailable.

    Raises:
        OSError: the file cannot be read.
        ValueError: it does not say.
    """
    for line in Path(meminfo).read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return Room("available memory (MemAvailable)", int(rest.split()[0]) * 1024)
    raise ValueError(f"{meminfo} has no MemAvailable")


def cgroup_room(root: str = CGROUP_ROOT, membership: str = "/proc/self/cgroup") -> Room | None:
    """What the tightest control group above this process leaves.

    Args:
        root: where control groups are mounted.
        membership: the process's list of control groups.

    Returns:
        The tightest limit less what is used and could not be reclaimed, or None without limits.
    """
    rooms: list[Room] = []
    for base, path, limit_name, used_name, cache_name in _hierarchies(root, membership):
        # Inside a container the path may be one of the host: then only the root is there.
        relative = Path(path.lstrip("/"))
        for part in [relative, *relative.parents][:_MAX_DEPTH]:
            room = _group_room(base / part, limit_name, used_name, cache_name)
            if room is not None:
                rooms.append(room)
    return min(rooms, key=lambda room: room.free_bytes, default=None)


def _hierarchies(root: str, membership: str) -> list[tuple[Path, str, str, str, str]]:
    try:
        lines = Path(membership).read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = ["0::/"]
    found: list[tuple[Path, str, str, str, str]] = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            v2 = ("memory.max", "memory.current", "inactive_file")
            found.append((Path(root), path, *v2))
        elif "memory" in controllers.split(","):
            v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found.append((Path(root) / "memory", path, *v1))
    return found


def _group_room(group: Path, limit_name: str, used_name: str, cache_name: str) -> Room | None:
    limit_bytes = _number(group / limit_name)
    if limit_bytes is None or limit_bytes >= _NO_LIMIT_BYTES:
        return None
    used_bytes = _number(group / used_name) or 0
    cache_bytes = 0
    try:
        for line in (group / "memory.stat").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == cache_name:
                cache_bytes = int(value)
    except (OSError, ValueError):
        pass
    free_bytes = max(0, limit_bytes - max(0, used_bytes - cache_bytes))
    return Room(f"the control group's memory limit ({group / limit_name})", free_bytes)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # absent, or "max"
        return None
