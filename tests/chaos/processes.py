"""Processes by descriptor: a signal never reaches another process that got the same number.

Must not know: what the processes are. Any thread of the conductor.
"""

from __future__ import annotations

import os
import re
import select
import signal
from pathlib import Path


class Grip:
    """A process that this run started, held by a pidfd."""

    def __init__(self, pid: int) -> None:
        """Takes hold.

        Args:
            pid: of a process of this run.

        Raises:
            ProcessLookupError: it is gone.
        """
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def signal(self, number: int) -> bool:
        """Sends a signal; whether it was there to get it."""
        try:
            signal.pidfd_send_signal(self._fd, number)
        except (ProcessLookupError, OSError):
            return False
        return True

    def wait_gone(self, limit_s: float) -> bool:
        """Waits for its exit; whether it came in time."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(limit_s * 1000))

    @property
    def is_alive(self) -> bool:
        """Whether it has not exited."""
        return not self.wait_gone(0)

    def close(self) -> None:
        """Lets go. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def children_of(pid: int) -> list[int]:
    """Process ids of a process's children; none when it is gone."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def module_of(pid: int) -> str:
    """What its interpreter runs by ``-m``; empty when it is gone or runs something else."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next((words[at + 1] for at, word in enumerate(words[:-1]) if word == "-m"), "")


def state_of(pid: int) -> str:
    """Its state as ``/proc`` shows it: ``T`` is stopped; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def rss_anon_bytes(pid: int) -> int:
    """Its private memory; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(r"RssAnon:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _of_the_dead(pid: int, name: str) -> str:
    """A pidfd whose process is gone is a different find from one that is still watched."""
    try:
        text = Path(f"/proc/{pid}/fdinfo/{name}").read_text()
    except OSError:
        return ""
    found = re.search(r"^Pid:\s+(-?\d+)$", text, re.M)
    if found is None:
        return ""
    return " of the dead" if int(found[1]) < 0 else f" of {name_of(int(found[1]))}"


def name_of(pid: int) -> str:
    """The program, by its arguments without numbers."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return "a process that is gone"
    told = [word for word in words[1:5] if not word.isdigit()]
    return b" ".join(told).decode("utf-8", "replace")[:60] or "a process without a name"


def descriptors_of(pid: int, ignored: str) -> dict[str, int]:
    """How many descriptors of each kind it has.

    Args:
        pid: whose.
        ignored: what lies in this folder is not counted.
    """
    found: dict[str, int] = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return found
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if not target.startswith(ignored):
            kind = re.sub(r"[:/].*", "", target.lstrip("/")) or "other"
            if target.startswith("anon_inode:"):
                kind = target.partition(":")[2] + _of_the_dead(pid, name)
            elif target.startswith("/memfd:"):
                kind = "memfd"
            found[kind] = found.get(kind, 0) + 1
    return dict(sorted(found.items()))
