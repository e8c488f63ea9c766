"""CPU time of a thread of another process, read from /proc.

Purpose: say how busy the server's loop is while something is measured. Must not know: the server's
code. Runs in: the load generator's main thread.

Source: proc(5): ``schedstat`` counts nanoseconds, where ``stat`` counts ticks of 10 ms.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path


def thread_cpu_ns(pid: int, tid: int) -> int:
    """CPU time that a thread has used.

    Args:
        pid: its process.
        tid: the thread; a process's first thread has the process's number.

    Returns:
        Nanoseconds.

    Raises:
        OSError: there is no such thread.
    """
    folder = Path(f"/proc/{pid}/task/{tid}")
    try:
        return int((folder / "schedstat").read_text("ascii").split()[0])
    except FileNotFoundError:  # a kernel without schedstat, or no such thread: the next line says
        fields = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * (10**9 // os.sysconf("SC_CLK_TCK"))


@dataclass
class Meter:
    """Share of one CPU that a thread has used since it was last read.

    Attributes:
        pid: its process.
        tid: the thread.
    """

    pid: int
    tid: int
    _cpu_ns: int = field(init=False)
    _wall_ns: int = field(init=False)

    def __post_init__(self) -> None:
        """Begins now."""
        self._cpu_ns, self._wall_ns = thread_cpu_ns(self.pid, self.tid), time.monotonic_ns()

    def read(self) -> float:
        """The share since the last reading, and begins anew.

        Returns:
            0..1.

        Raises:
            OSError: the thread has gone.
        """
        cpu_ns, wall_ns = thread_cpu_ns(self.pid, self.tid), time.monotonic_ns()
        share = (cpu_ns - self._cpu_ns) / max(1, wall_ns - self._wall_ns)
        self._cpu_ns, self._wall_ns = cpu_ns, wall_ns
        return min(1.0, share)
