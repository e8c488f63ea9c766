"""What ``doctor`` looks at without any device: the kernel, limits, shared memory, namespaces.

Must not know: CUDA, how findings are shown. Runs in: the process of the command line.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from server import config as settings
from server.cli.findings import Finding, Level

SMALL_SHM_BYTES = 1 << 30
SHARED_MEMORY = Path("/dev/shm")
HOST_PID_SPACE = "pid:[4026531836]"
"""The first pid namespace of a kernel, the host's own. Source: Linux, PROC_PID_INIT_INO."""
_UNLIMITED = resource.RLIM_INFINITY


def findings(environ: Mapping[str, str]) -> list[Finding]:
    """Everything about this machine, as this process sees it.

    Args:
        environ: of this process.
    """
    return [
        interpreter(),
        kernel(),
        open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        shared_memory(arena_parent(environ)),
        huge_pages(arena_parent(environ)),
        locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)),
        *namespaces(os.readlink),
        user(),
    ]


def interpreter() -> Finding:
    """Which Python, since the packages that doctor finds are those of this one."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(Level.OK, "python", f"{version}, {sys.executable}")


def kernel() -> Finding:
    """Whether exits can be watched and memory can be sealed."""
    release = os.uname().release
    try:
        os.close(os.pidfd_open(os.getpid()))
        os.close(os.memfd_create("kvkeep-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except (OSError, AttributeError) as error:
        why = f"Linux {release}: {error}"
        return Finding(
            Level.ERROR, "kernel", why, "pidfds and memfds are needed: Linux 5.4 or newer"
        )
    return Finding(Level.OK, "kernel", f"Linux {release}: pidfds and sealed memfds work")


def open_files(hard: int) -> Finding:
    """Whether the server may have enough descriptors.

    Args:
        hard: the hard limit, or ``RLIM_INFINITY``.
    """
    from server.process import MIN_OPEN_FILES

    if hard != _UNLIMITED and hard < MIN_OPEN_FILES:
        return Finding(
            Level.ERROR,
            "open files",
            f"at most {hard}; the server does not start with less than {MIN_OPEN_FILES}",
            "raise the hard limit: ulimit -Hn, LimitNOFILE=, docker run --ulimit nofile=",
        )
    shown = "unlimited" if hard == _UNLIMITED else str(hard)
    return Finding(Level.OK, "open files", f"at most {shown}")


def arena_parent(environ: Mapping[str, str]) -> Path:
    """The nearest folder that exists of where the arena would lie.

    Args:
        environ: of this process.
    """
    path = Path(environ.get("KVKEEP_ARENA_DIR") or SHARED_MEMORY)
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def shared_memory(folder: Path) -> Finding:
    """How much room there is for an arena.

    Args:
        folder: where it would lie.
    """
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return Finding(Level.ERROR, "shared memory", f"{folder}: {error.strerror}")
    total_bytes, free_bytes = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    text = f"{folder}: {settings.format_size(total_bytes)}, {settings.format_size(free_bytes)} free"
    if free_bytes < SMALL_SHM_BYTES:
        return Finding(
            Level.WARNING,
            "shared memory",
            text,
            "the arena must fit in: docker run --shm-size, an emptyDir with medium Memory, or "
            "--arena-dir on another tmpfs",
        )
    return Finding(Level.OK, "shared memory", text)


def huge_pages(folder: Path, mounts: str = "/proc/self/mountinfo") -> Finding:
    """Which pages the arena's file system has; either kind works.

    Args:
        folder: where the arena would lie.
        mounts: file to read.
    """
    try:
        device = os.stat(folder).st_dev
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return Finding(Level.NOTE, "huge pages", f"{folder}: {error.strerror}")
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        fields, _, rest = line.partition(" - ")
        if fields.split()[2:3] == [wanted]:
            said = [word for word in rest.split()[-1].split(",") if word.startswith("huge=")]
            if said and said[0] != "huge=never":
                return Finding(Level.OK, "huge pages", f"{folder} is mounted with {said[0]}")
    text = f"{folder} has small pages, with which all figures of the documents were measured"
    return Finding(Level.OK, "huge pages", text)


def locked_memory(limits: tuple[int, int]) -> Finding:
    """How much a process may lock, in case the driver counts what it page-locks.

    Args:
        limits: soft and hard, bytes, or ``RLIM_INFINITY``.
    """
    soft, hard = ("unlimited" if n == _UNLIMITED else settings.format_size(n) for n in limits)
    text = f"soft limit {soft}, hard limit {hard} (ulimit -l)"
    if limits[0] == _UNLIMITED:
        return Finding(Level.OK, "locked memory", text)
    return Finding(
        Level.NOTE,
        "locked memory",
        f"{text}; whether it counts for a GPU's page-locking is tried below, where there is one",
    )


def namespaces(read: Callable[[str], str]) -> list[Finding]:
    """In which process and ipc namespace this process is.

    Args:
        read: of a symbolic link.
    """
    try:
        pid_space, ipc_space = (read(f"/proc/self/ns/{name}") for name in ("pid", "ipc"))
    except OSError as error:
        return [
            Finding(Level.WARNING, "namespaces", f"/proc cannot be read: {error.strerror}"),
        ]
    if pid_space == HOST_PID_SPACE:
        return [Finding(Level.OK, "namespaces", f"{pid_space} (the machine's own), {ipc_space}")]
    return [
        Finding(
            Level.NOTE,
            "namespaces",
            f"{pid_space}, {ipc_space}: a container",
            "run doctor in the engine's container as well: where the pid number differs, GPU "
            "memory is not shared by handle (--pid=host, shareProcessNamespace: true)",
        )
    ]


def user() -> Finding:
    """Who this is: server and engines must be the same, or in the group of ``--group``."""
    return Finding(Level.OK, "user", f"uid {os.geteuid()}, gid {os.getegid()}")
