"""How much memory an arena may take: machine, control group, process limits, each by name.

Purpose: refuse an arena that the kernel would later punish with SIGBUS or the OOM killer (B37).
Must not know: settings. Runs in: the main thread, at start.
"""

from __future__ import annotations

import os
import resource
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


def process_room() -> Room | None:
    """What this process's own limits leave; its copiers inherit them and map the whole arena.

    Returns:
        The limit of its address space less what it has mapped, or None without one. (RLIMIT_MEMLOCK
        bounds nothing here: the server locks no page.)
    """
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes == resource.RLIM_INFINITY:
        return None
    mapped_bytes = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    mapped_bytes *= resource.getpagesize()
    return Room("the limit of address space (RLIMIT_AS)", max(0, limit_bytes - mapped_bytes))


def file_room() -> Room | None:
    """How long one file of this process may be: writing beyond it fails, whatever memory is left.

    Returns:
        The limit, or None without one.
    """
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit_bytes == resource.RLIM_INFINITY:
        return None
    return Room("the limit of file sizes (RLIMIT_FSIZE)", limit_bytes)


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
            # Beyond the second the kernel slows the group down until hardly anything moves.
            for limit_name in ("memory.max", "memory.high"):
                v2 = (limit_name, "memory.current", "inactive_file")
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


def is_memory(path: str, mounts: str = "/proc/self/mountinfo") -> bool:
    """Whether files of a folder are memory of this machine.

    Args:
        path: the folder.
        mounts: file to read.

    Returns:
        True for a tmpfs; False for other file systems, and where it cannot be told.
    """
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        fields, _, rest = line.partition(" - ")
        if fields.split()[2:3] == [wanted]:
            return rest.split()[:1] in (["tmpfs"], ["ramfs"])
    return False


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # absent, or "max"
        return None
