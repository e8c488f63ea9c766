"""How much memory a run takes, cut to what the machine has free.

Purpose: choose the arena, the pool and the rounds, and refuse in one line where even the smallest
run would press other programs. Must not know: servers, processes. Runs in: the benchmark's process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigError, ErrorCode

MIB = 1 << 20
GIB = 1 << 30
PAGE_BYTES = 4 * MIB
PAGES_PER_REQUEST = 32
_REQUEST_BYTES = PAGE_BYTES * PAGES_PER_REQUEST
_BESIDE_BYTES = 512 * MIB
"""Interpreters of the server, its copier, the load generators and this process, and some air."""


@dataclass(frozen=True)
class Sizing:
    """What one run uses.

    Attributes:
        arena_bytes: arena of the server that bandwidth is measured on.
        start_arena_bytes: arena of the servers whose start is timed; 1 GiB where it fits.
        pool_requests: requests of 32 pages that the pool of the load generator holds.
        requests_per_round: requests of 32 pages in one round, some over the same pages.
        rounds: rounds of each bandwidth figure, at least 9.
        starts: servers started one after the other.
        calls: round trips of each latency figure.
        lookups: lookups of each lookup figure.
        cold_lookups: lookups from lists never hashed before.
    """

    arena_bytes: int
    start_arena_bytes: int
    pool_requests: int
    requests_per_round: int
    rounds: int
    starts: int
    calls: int
    lookups: int
    cold_lookups: int

    @property
    def pool_pages(self) -> int:
        """Pages in the pool of the load generator."""
        return self.pool_requests * PAGES_PER_REQUEST

    @property
    def pool_bytes(self) -> int:
        """Length of that pool, and of the scratch file for plain copies."""
        return self.pool_pages * PAGE_BYTES

    @property
    def fill_requests(self) -> int:
        """Requests of 32 pages that fit an arena, its records and rounding left out."""
        return int(self.arena_bytes * 0.93) // _REQUEST_BYTES

    @property
    def needed_bytes(self) -> int:
        """Memory of the whole run at its peak: arena, pool, scratch file, processes."""
        return self.arena_bytes + 2 * self.pool_bytes + _BESIDE_BYTES


def choose(available_bytes: int, quick: bool) -> Sizing:
    """Picks the largest run that leaves half of the free memory alone.

    Args:
        available_bytes: memory that is free for use, and in tmpfs.
        quick: fewer rounds, for a check of every commit.

    Returns:
        The sizes.

    Raises:
        ConfigError: INVALID_CONFIG, naming what the smallest run needs.
    """
    smallest = None
    for pool_requests, requests_per_round in ((4, 6), (2, 3), (1, 1)):
        arena_bytes = GIB if pool_requests == 4 else 2 * pool_requests * _REQUEST_BYTES
        sizing = Sizing(
            arena_bytes=arena_bytes,
            start_arena_bytes=GIB if available_bytes >= 2 * GIB else arena_bytes,
            pool_requests=pool_requests,
            requests_per_round=requests_per_round,
            rounds=9 if quick else 15,
            starts=3 if quick else 5,
            calls=400 if quick else 2000,
            lookups=100 if quick else 400,
            cold_lookups=15 if quick else 60,
        )
        if sizing.needed_bytes * 2 <= available_bytes or (
            pool_requests == 1 and sizing.needed_bytes <= available_bytes
        ):
            return sizing
        smallest = sizing
    needed_bytes = smallest.needed_bytes if smallest else 0
    raise ConfigError(
        ErrorCode.INVALID_CONFIG,
        f"the smallest benchmark needs {needed_bytes // MIB} MiB of memory, "
        f"{available_bytes // MIB} MiB are free",
        needed_bytes=needed_bytes,
        available_bytes=available_bytes,
    )


def available_bytes(shm: Path = Path("/dev/shm"), meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that a run may use: the least of what the host, its tmpfs and the cgroup have free.

    Args:
        shm: mount of the arena.
        meminfo: as Linux writes it.

    Returns:
        Bytes.
    """
    free = [_meminfo_available(meminfo.read_text("ascii"))]
    stat = os.statvfs(shm)
    free.append(stat.f_bavail * stat.f_frsize)
    free += _cgroup_free(Path("/sys/fs/cgroup"))
    return min(free)


def _meminfo_available(text: str) -> int:
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError(ErrorCode.INVALID_CONFIG, "/proc/meminfo has no line MemAvailable")


def _cgroup_free(root: Path) -> list[int]:
    """What a container's limit leaves; empty without a limit."""
    for limit_name, usage_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = (root / limit_name).read_text("ascii").strip()
            usage = (root / usage_name).read_text("ascii").strip()
        except OSError:
            continue
        if limit.isdecimal():
            return [max(0, int(limit) - int(usage))]
    return []
