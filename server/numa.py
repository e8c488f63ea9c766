"""Placing memory near a device, on machines with several NUMA nodes.

A page of the arena lies on the node that its maker's thread prefers when it is first allocated, and
stays there. So whoever makes an extent, or a page-locked buffer, says before which node is near.
That is said twice: as the thread's memory policy, which a container may forbid (Docker's default
seccomp profile does without CAP_SYS_NICE), and by having the thread run on the node's CPUs, since
pages come from the node of the CPU where nothing else was said. A policy that somebody chose for
the whole process (``numactl``) is left alone, and so are CPUs that it was bound to.

Sources: set_mempolicy(2), sched_setaffinity(2), the kernel's "NUMA memory policy" (tmpfs files
follow the policy of the task that allocates), numa(7) on ``numa_maps``.

Must not know: what is placed, devices. Runs in: the thread that is to be placed; policy and CPUs
are a thread's own, and inherited by threads that it starts.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Nodes = Mapping[int, frozenset[int]]
"""CPUs by node, of nodes that have both CPUs and memory."""

_POLICY_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
"""set_mempolicy and get_mempolicy. Source: the kernel's tables of system calls."""

_DEFAULT = 0
_PREFERRED = 1
_MOST_NODES = 1024
_SAMPLES = 16
_PAGES = re.compile(r" N(\d+)=(\d+)")


@dataclass(frozen=True)
class Placed:
    """What was said to the kernel about the calling thread.

    Attributes:
        has_policy: new pages come from the node as long as it has any.
        has_cpus: the thread runs on the node's CPUs alone.
        before_cpus: on which it ran before; empty where that was not changed.
    """

    has_policy: bool = False
    has_cpus: bool = False
    before_cpus: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        """Whether new pages come from the node."""
        return self.has_policy or self.has_cpus


def nodes_of(sysfs: Path = Path("/sys")) -> dict[int, frozenset[int]]:
    """The machine's nodes; none where the kernel knows nothing of nodes.

    Nodes without CPUs are left out: memory of a device, or slow memory that nobody is near to.

    Args:
        sysfs: where sysfs is mounted.
    """
    home = sysfs / "devices/system/node"
    found: dict[int, frozenset[int]] = {}
    for node in sorted(_numbers(home / "has_memory")):
        cpus = _numbers(home / f"node{node}/cpulist")
        if cpus:
            found[node] = cpus
    return found


def _numbers(file: Path) -> frozenset[int]:
    """A list as the kernel writes it: ``0-3,8``."""
    try:
        text = file.read_text(encoding="ascii").strip()
        ranges = [word.split("-") for word in text.split(",") if word]
        return frozenset(n for one in ranges for n in range(int(one[0]), int(one[-1]) + 1))
    except (OSError, ValueError):
        return frozenset()


def place(node: int | None, nodes: Nodes) -> Placed:
    """Has the calling thread's new pages come from a node, as far as that is allowed.

    Args:
        node: which; None and nodes that are not there change nothing.
        nodes: of the machine; where it has one alone, nothing is changed.
    """
    if node is None or node not in nodes or len(nodes) < 2:
        return Placed()
    before = frozenset(os.sched_getaffinity(0))
    near = before & nodes[node]
    moved_from: frozenset[int] = frozenset()
    if near and near != before:
        try:
            os.sched_setaffinity(0, near)
            moved_from = before
        except OSError:
            near = frozenset()
    mode = policy()
    has_policy = mode == _DEFAULT and _set_policy(_PREFERRED, node)
    # Under another policy the CPUs say nothing about memory.
    has_cpus = bool(near) and mode in (None, _DEFAULT)
    return Placed(has_policy, has_cpus, moved_from)


def undo(placed: Placed) -> None:
    """Has the calling thread be as it was before ``place``."""
    if placed.has_policy:
        _set_policy(_DEFAULT, None)
    if placed.before_cpus:
        try:
            os.sched_setaffinity(0, placed.before_cpus)
        except OSError:  # those CPUs were taken from the process meanwhile
            pass


@contextmanager
def near(node: int | None, nodes: Nodes) -> Iterator[Placed]:
    """As ``place``, until the end of the block."""
    placed = place(node, nodes)
    try:
        yield placed
    finally:
        undo(placed)


def policy() -> int | None:
    """The calling thread's memory policy, 0 for the default; None where asking is forbidden."""
    mode = ctypes.c_int(-1)
    calls = _POLICY_CALLS.get(platform.machine())
    if calls is None or _call(calls[1], ctypes.byref(mode), None, 0, None, 0) != 0:
        return None
    return mode.value


def _set_policy(mode: int, node: int | None) -> bool:
    calls = _POLICY_CALLS.get(platform.machine())
    if calls is None:
        return False
    if node is None:
        return _call(calls[0], mode, None, 0) == 0
    words = (ctypes.c_uint64 * (_MOST_NODES // 64))()
    words[node // 64] = 1 << node % 64
    # The kernel takes one bit less than it is told.
    return _call(calls[0], mode, words, _MOST_NODES + 1) == 0


def _call(number: int, *arguments: object) -> int:
    """A system call without a wrapper in the C library."""
    long = ctypes.c_long
    given = [long(one) if isinstance(one, int) else one for one in arguments]
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = long
    return int(call(long(number), *given))


def node_of_file(
    fd: int, num_bytes: int, maps: Path = Path("/proc/thread-self/numa_maps")
) -> int | None:
    """On which node most of a file in memory lies, judged by a few pages all over it.

    Needs no right, unlike asking the kernel for single pages.

    Args:
        fd: readable; all its pages are there.
        num_bytes: its length.
        maps: the calling thread's.

    Returns:
        None where the kernel does not tell.
    """
    try:
        mapped = mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError:
        return None
    view = np.frombuffer(mapped, dtype=np.uint8)
    for sample in range(_SAMPLES):
        int(view[sample * (num_bytes - 1) // (_SAMPLES - 1)])  # the kernel tells of pages in use
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return most_pages(lines, int(view.ctypes.data))


def most_pages(lines: Sequence[str], address: int) -> int | None:
    """The node with most of a mapping's pages.

    Args:
        lines: of ``numa_maps``.
        address: first byte of the mapping.
    """
    line = next((one for one in lines if one.startswith(f"{address:x} ")), "")
    pages = {int(node): int(count) for node, count in _PAGES.findall(line)}
    return max(pages, key=lambda node: pages[node], default=None)
