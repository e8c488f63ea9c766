"""Figures of a server process from outside, and a child that makes trouble for it.

Knows ``/proc`` and the wire client. Runs in the pytest process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.wire.process import ROOT

MIB = 1 << 20


def anon_bytes(pid: int) -> int:
    """Private resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"RssAnon:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


def num_descriptors(pid: int) -> int:
    """Open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def timed_ms(call: Callable[[], object]) -> float:
    """How long a call takes on the clock."""
    begun_s = time.perf_counter()
    call()
    return (time.perf_counter() - begun_s) * 1000


def percentile(values: list[float], share: float) -> float:
    """The value below which a share of all lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python child, ended when the block is left; its stdout is a pipe.

    Args:
        arguments: of the interpreter.
    """
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stdin):
            assert pipe is not None
            pipe.close()


def read_line(process: subprocess.Popen[bytes]) -> str:
    """The next line that a child prints."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()
